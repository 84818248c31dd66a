"""What a table is: its layout as a config gives it, and its columns, lines and cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from dypam.config import ConfigError
from dypam.validate import NAME
from eval import extract, stats
from eval.aggregate import PUBLISHED_SEED

SHOWS = ("seed", "mean", "interval", "published", "difference")


@dataclass(frozen=True)
class Layout:
    """How a table is drawn (`table` of a `configs/experiment/*.yaml`).

    Attributes:
        name: file name without suffix.
        caption: what the table shows.
        protocols: scoring protocols, each with its own lines.
        show: lines of each method: `seed` (the run of `seed`), `mean` (mean ± sd over seeds), `interval`
            (95 % bootstrap over examples, run of `seed`), `published`, `difference` (seed − published).
        ours: the method that is starred.
        seed: the seed that stands beside published numbers.
        chance: whether a line for guessing comes first.
        params: whether the published Param(%) is a column.
        published: CSV file of published numbers, in `eval/published/`.
        published_names: by a method's name, the one that the file gives it where it is another.
        published_backbone: the backbone of a file that names none.
        cut: cut the numbers of `seed` after `digits` decimals rather than round them, as published ones are.
        test: `student`, `welch` or `paired`.
        holm: adjust the p-values of the table's stars by Holm's procedure.
        digits: decimals.
        params_digits: decimals of Param(%).
        columns: the columns to show; all without it.
        pivot: with one column, make the backbones the columns (as Table 2).
        rehearsal: label the table as a rehearsal.
    """

    name: str
    caption: str
    protocols: tuple[str, ...] = ("paper",)
    show: tuple[str, ...] = ("mean",)
    ours: str = "dypam"
    seed: int = PUBLISHED_SEED
    chance: bool = False
    params: bool = False
    published: str | None = None
    published_names: Mapping[str, str] = field(default_factory=dict)
    published_backbone: str | None = None
    cut: bool = False
    test: stats.Kind = "student"
    holm: bool = False
    digits: int = 2
    params_digits: int = 2
    columns: tuple[str, ...] = ()
    pivot: bool = False
    rehearsal: bool = False

    @classmethod
    def from_config(cls, given: Mapping[str, Any]) -> Layout:
        """Build from a plain dict; raise `ConfigError` on an unknown key or value."""
        known = {f.name for f in fields(cls)}
        for key in given:
            if key not in known:
                raise ConfigError(f"table.{key} is unknown; use one of {', '.join(sorted(known))}.")
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
        for f in fields(cls):
            default = {} if f.default_factory is not MISSING else f.default
            _check(f.name, values.get(f.name, default), "" if default is MISSING else default)
        layout = cls(**values)
        choices = (("show", layout.show, SHOWS), ("protocols", layout.protocols, tuple(extract.PROTOCOLS)))
        for name, chosen, allowed in (*choices, ("test", (layout.test,), stats.KINDS)):
            for value in chosen:
                if value not in allowed:
                    raise ConfigError(f"table.{name} has {value!r}; use {', '.join(allowed)}.")
        if layout.pivot and len(layout.columns) != 1:
            raise ConfigError(
                f"table.pivot needs one column, and table.columns is {list(layout.columns)}; give one."
            )
        beside = {"published", "difference"} & set(layout.show)
        if beside and layout.rehearsal:
            raise ConfigError("table.show puts published numbers beside a rehearsal; remove them from show.")
        if beside and not layout.published:
            raise ConfigError(
                "table.show has published numbers, but table.published names no file; give one."
            )
        return layout


def _check(key: str, value: Any, default: Any) -> None:
    """Raise `ConfigError` unless a value of a layout is of its default's kind."""
    kinds: dict[type, tuple[bool, str]] = {
        bool: (isinstance(value, bool), "true or false"),
        int: (type(value) is int and value >= 0, "a whole number of at least 0"),
        tuple: (isinstance(value, tuple) and bool(value or not default), "a list with something in it"),
        str: (isinstance(value, str), "some text"),
        dict: (isinstance(value, Mapping), "a mapping"),
        type(None): (value is None or isinstance(value, str), "text or null"),
    }
    good, wanted = kinds[type(default)]
    if key == "name":
        good, wanted = good and NAME.fullmatch(value) is not None, "a plain name of a file, without a folder"
    if not good:
        shown = None if value is MISSING else list(value) if isinstance(value, tuple) else value
        raise ConfigError(f"table.{key} is {shown!r}; give {wanted}.")


@dataclass(frozen=True)
class Column:
    """A column: `kind` is `set`, `average`, `params`, or `measure` for what is no accuracy.

    `n` is the number of examples; `digits` the decimals, where they are not the layout's.
    """

    key: str
    label: str
    kind: str
    n: int | None = None
    contaminated: str | None = None
    digits: int | None = None


@dataclass
class Cell:
    """A value in percent (None: missing), its spread or interval, the number of runs, and its marks.

    `text` stands where there is no number by nature, such as the format of answers.
    """

    value: float | None = None
    sd: float | None = None
    interval: tuple[float, float] | None = None
    runs: int = 0
    mark: str = ""
    star: bool = False
    text: str | None = None


@dataclass
class Line:
    """One line of a table: backbone, method, the way it is shown, and a cell for each column."""

    backbone: str
    method: str
    variant: str
    kind: str
    cells: dict[str, Cell]
    ours: bool = False


@dataclass
class Table:
    """What a renderer needs; `tests` are the comparisons behind the stars, `heads` name the first columns."""

    layout: Layout
    columns: list[Column]
    lines: list[Line]
    caption: str
    notes: list[str]
    missing: dict[str, str] = field(default_factory=dict)
    tests: list[dict[str, Any]] = field(default_factory=list)
    heads: tuple[str, str, str] = ("Backbone", "Method", "Shown")
