// Sortable tables, and the views made of them: results and runs.

// columns: {key, label, title, numeric, value(row) to sort by, cell(row) to show, header}
function sortable(id, tableColumns, rows, caption) {
  const sort = state.sort[id] || null;
  const column = sort && tableColumns.find((c) => c.key === sort.key);
  const sorted = column ? [...rows].sort((a, b) => compare(column.value(a), column.value(b), sort.direction)) : rows;
  const turn = (key) => {
    const numeric = tableColumns.find((c) => c.key === key).numeric;
    const first = numeric ? -1 : 1;
    state.sort[id] = !sort || sort.key !== key ? { key, direction: first } : sort.direction === first ? { key, direction: -first } : null;
    render().then(() => $(`#${id} thead [data-key="${key}"]`)?.focus());
  };
  const head = tableColumns.map((c) => {
    const direction = sort?.key === c.key ? (sort.direction > 0 ? "ascending" : "descending") : "none";
    return h("th", { scope: "col", class: c.numeric && "number", "aria-sort": direction },
      h("button", { type: "button", title: c.title, "data-key": c.key, onclick: () => turn(c.key) }, c.label));
  });
  const body = sorted.map((row) => h("tr", {}, tableColumns.map((c) =>
    h(c.header ? "th" : "td", { class: c.numeric && "number", scope: c.header && "row" }, c.cell(row)))));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h("table", { id }, h("caption", { class: "note", hidden: true }, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}
// What is missing comes last, whichever way the rest is sorted.
function compare(a, b, direction) {
  const [noA, noB] = [a ?? null, b ?? null].map((value) => value === null);
  if (noA || noB) return noA - noB;
  return direction * (typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
}

// Best and second by the two decimals shown, ties sharing, within a backbone.
function ranks(rows, column, show) {
  const marks = new Map();
  for (const backbone of new Set(rows.map((row) => row.backbone))) {
    const own = rows.filter((row) => row.backbone === backbone);
    const values = own.map((row) => cellsOf(row.members, column, show).value);
    const top = [...new Set(values.filter((v) => v !== null).map((v) => v.toFixed(2)))].sort((a, b) => b - a);
    own.forEach((row, i) => { if (values[i] !== null) marks.set(row, ["best", "second"][top.indexOf(values[i].toFixed(2))]); });
  }
  return marks;
}
function difference(value, published) {
  if (value === null || published === undefined) return null;
  const change = value - published;
  return h("span", { class: `difference ${change < 0 ? "down" : "up"}`, title: `published ${published.toFixed(2)}` }, `${change < 0 ? "−" : "+"}${Math.abs(change).toFixed(2)}`);
}
function seedsOf(members) {
  const seeds = [...new Set(members.map((run) => run.seed))].sort((a, b) => a - b);
  return seeds.includes(2333) ? [2333, ...seeds.filter((seed) => seed !== 2333)] : seeds;
}

const PUBLISHED_SEED = "2333";
const results = { show: "mean", published: true };
function resultsView() {
  const members = runs();
  const rows = rowsOf(members);
  const seeds = seedsOf(data.runs.filter((run) => groupKey(run) === state.group)).map(String);
  if (results.show !== "mean" && !seeds.includes(results.show)) results.show = "mean";
  const anyPublished = state.protocol === data.protocols[0] && rows.some((row) => row.published);
  const compared = anyPublished && results.published;
  const accuracyColumns = columns().map((column) => {
    const marks = ranks(rows, column.key, results.show);
    return {
      key: column.key, numeric: true, title: column.test?.contaminated ? `Seen in training data: ${column.test.contaminated}` : `${column.label}, ${state.protocol} scoring`,
      label: column.label + (column.test?.contaminated ? " †" : ""),
      value: (row) => cellsOf(row.members, column.key, results.show).value,
      cell: (row) => {
        const { value, spread, n } = cellsOf(row.members, column.key, results.show);
        const text = number(value) + (spread === null ? "" : ` ± ${spread.toFixed(2)}`);
        return [h("span", { class: marks.get(row), title: value === null ? "no scored run" : plural(n, "run") }, text),
          compared && difference(cellsOf(row.members, column.key, PUBLISHED_SEED).value, row.published?.[column.key])];
      },
    };
  });
  const table = sortable("results-table", [
    { key: "method", label: "Method", header: true, value: (row) => methodLabel(row.method), cell: (row) => [methodLabel(row.method), rehearsalBadge()] },
    { key: "backbone", label: "Backbone", value: (row) => backboneLabel(row.backbone), cell: (row) => backboneLabel(row.backbone) },
    { key: "n", label: "n", numeric: true, title: "Scored runs of all runs", value: (row) => row.members.filter(isScored).length, cell: (row) => `${row.members.filter(isScored).length}/${row.members.length}` },
    { key: "params", label: "Param(%)", numeric: true, value: (row) => row.members[0].params, cell: (row) => number(row.members[0].params) },
    ...accuracyColumns,
  ], rows, `Accuracy in percent, ${suite().label}`);
  return [
    h("div", { class: "controls" },
      chooser("Show", "show", [["mean", "Mean ± sd over seeds"], ...seeds.map((seed) => [seed, `Seed ${seed}`])], results.show, (value) => { results.show = value; render(); }),
      anyPublished && h("label", { class: "check" }, h("input", { type: "checkbox", id: "published", checked: results.published, onchange: (event) => { results.published = event.target.checked; render(); } }), "Difference to the published number")),
    table,
    h("p", { class: "note", role: "status" }, `${plural(rows.length, "row")} from ${plural(members.length, "run")}. Best bold, second underlined, within a backbone. `,
      "— means that no run has been scored. ",
      compared ? `Small: the run of seed ${PUBLISHED_SEED} minus the published number. ` : "",
      suite().tests.some((test) => test.contaminated) ? "† test questions stand in public training data; hover for the count. " : "",
      suite().note || ""),
  ];
}

function runsView() {
  const members = runs();
  const column = (key, label, digits, title) => ({ key, label, title, numeric: true, value: (run) => run[key], cell: (run) => number(run[key], digits) });
  const table = sortable("runs-table", [
    { key: "method", label: "Method", header: true, value: (run) => methodLabel(run.method), cell: (run) => h("button", { type: "button", class: "open", onclick: () => openRun(run) }, methodLabel(run.method)) },
    { key: "backbone", label: "Backbone", value: (run) => backboneLabel(run.backbone), cell: (run) => [backboneLabel(run.backbone), rehearsalBadge()] },
    { key: "seed", label: "Seed", numeric: true, value: (run) => run.seed, cell: (run) => String(run.seed) },
    { key: "status", label: "Status", value: (run) => run.status, cell: (run) => h("span", { title: run.why }, run.status + (run.why.startsWith("not scored") ? ", not scored" : "")) },
    ...["micro", "macro"].map((key) => ({ key, label: key === "micro" ? "Micro" : "Macro", numeric: true, value: (run) => accuracy(run, key), cell: (run) => number(accuracy(run, key)) })),
    column("params", "Param(%)", 2), column("memory", "Memory (GB)", 2, "Peak memory"), column("train_speed", "Train tok/s", 0),
    column("generate_speed", "Gen. tok/s", 0), column("hours", "Hours", 2, "Training and generation"),
  ], members, "Runs");
  const counts = Object.entries(Object.groupBy ? Object.groupBy(members, (run) => run.status) : {}).map(([name, list]) => `${list.length} ${name}`);
  return [table, h("p", { class: "note", role: "status" }, `${plural(members.length, "run")}: ${counts.join(", ")}. A method’s button opens the run.`)];
}

function flatten(value, prefix = "") {
  if (value === null || typeof value !== "object") return [[prefix, JSON.stringify(value)]];
  const entries = Object.entries(value);
  return entries.length ? entries.flatMap(([key, inner]) => flatten(inner, prefix ? `${prefix}.${key}` : key)) : [[prefix, Array.isArray(value) ? "[]" : "{}"]];
}
async function openRun(run) {
  const i = data.runs.indexOf(run);
  const [details, curves] = await Promise.all([unpack("details"), unpack("curves")]);
  const dialog = $("#dialog");
  const line = (kind) => [{ xs: curves[i][kind][0], ys: curves[i][kind][1], ...series(run.method), label: methodLabel(run.method) }];
  const width = Math.max(270, Math.min(460, window.innerWidth * 0.96 - 40));
  dialog.replaceChildren(
    h("div", { class: "dialog-head" }, h("h2", { id: "dialog-title" }, `${methodLabel(run.method)}, ${backboneLabel(run.backbone)}, seed ${run.seed}`, rehearsalBadge()),
      h("button", { type: "button", id: "close", onclick: () => dialog.close() }, "Close")),
    h("p", {}, `Status: ${run.status}. `, run.why && h("span", { class: "warning" }, run.why)),
    h("table", { class: "pairs" }, h("tbody", {}, columns().map((c) => {
      const cell = run.cells[state.protocol]?.[c.key];
      return h("tr", {}, h("th", { scope: "row" }, c.label), h("td", {}, cell ? number(cell[0]) + (cell.length > 1 ? `  (95 %: ${number(cell[1])} – ${number(cell[2])})` : "") : "—"));
    }))),
    h("div", { class: "plots" },
      linePlot({ lines: line("loss"), xLabel: "Step", yLabel: "Training loss", title: "Training loss", width, height: 240 }),
      linePlot({ lines: line("val_loss"), xLabel: "Step", yLabel: "Validation loss", title: "Validation loss", width, height: 240 })),
    ...Object.entries(details[i]).map(([name, value]) => h("details", {}, h("summary", {}, name),
      h("table", { class: "pairs" }, h("tbody", {}, flatten(value).map(([key, text]) => h("tr", {}, h("th", { scope: "row" }, key || name), h("td", {}, text))))))));
  dialog.showModal();
}
