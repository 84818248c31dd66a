// The browser of single examples: what two runs answered, and what each protocol read in it.

const examples = { test: "", a: "", b: "", which: "differ", place: 0 };
const FILTERS = {
  all: ["All", () => true],
  differ: ["One right, one wrong", (a, b) => a !== b],
  a: ["Only A right", (a, b) => a && !b],
  b: ["Only B right", (a, b) => !a && b],
  neither: ["Both wrong", (a, b) => !a && !b],
};
const LISTED = 300;

const runName = (i) => `${methodLabel(data.runs[i].method)}, ${backboneLabel(data.runs[i].backbone)}, seed ${data.runs[i].seed}`;

async function examplesView() {
  const sheets = data.examples.sheets.map((sheet, i) => ({ ...sheet, i })).filter((sheet) => `${sheet.suite}|${sheet.rehearsal ? 1 : 0}` === state.group);
  if (!sheets.length) return [h("p", { class: "muted" }, "No run of this suite has valid predictions yet.")];
  const sheet = sheets.find((one) => one.test === examples.test) || sheets[0];
  examples.test = sheet.test;
  const available = sheet.runs.filter((i) => matches(data.runs[i])).map(String).sort((i, j) => (data.runs[j].seed === 2333) - (data.runs[i].seed === 2333));
  if (!available.length) return [h("p", { class: "muted" }, "No run matches the filter.")];
  pickRuns(available);
  const content = await unpack(`examples-${sheet.i}`);
  const { a, b } = { a: content.runs[examples.a], b: content.runs[examples.b] };
  const right = (run, k) => run.right[state.protocol][k] === "1";
  const test = FILTERS[examples.which][1];
  const found = content.ids.map((_, k) => k).filter((k) => test(right(a, k), right(b, k)));
  examples.place = Math.max(0, Math.min(examples.place, found.length - 1));
  const set = (key) => (value) => { examples[key] = value; examples.place = 0; render(); };
  const names = available.map((i) => [i, runName(i)]);
  const tests = sheets.map((one) => [one.test, data.suites[one.suite].tests.find((t) => t.name === one.test).label]);
  return [
    h("div", { class: "controls" },
      chooser("Test set", "test", tests, examples.test, set("test")),
      chooser("Run A", "run-a", names, examples.a, set("a")), chooser("Run B", "run-b", names, examples.b, set("b")),
      chooser("Show", "which", Object.entries(FILTERS).map(([key, [label]]) => [key, label]), examples.which, set("which"))),
    h("p", { class: "note", role: "status", id: "found" },
      `${plural(found.length, "example")} of ${content.ids.length.toLocaleString("en")} shown here. `,
      sheet.shown < sheet.rows ? h("strong", { id: "sampled" }, `Sampled: ${sheet.shown.toLocaleString("en")} of the test set’s ${plural(sheet.rows, "example")}, drawn at random, to keep the page small. `) : `All ${plural(sheet.rows, "example")} of the test set are in the page. `,
      "Keys: j next, k previous.", rehearsalBadge()),
    found.length ? browser(content, found, a, b, right) : h("p", { class: "muted" }, "No example fits; choose All to see every one."),
  ];
}
function pickRuns(available) {
  if (!available.includes(examples.a)) examples.a = available.find((i) => data.runs[i].method === "dypam") || available[0];
  const first = data.runs[examples.a];
  if (!available.includes(examples.b) || examples.b === examples.a) {
    const like = (i) => i !== examples.a && data.runs[i].backbone === first.backbone && data.runs[i].seed === first.seed;
    examples.b = available.find(like) || available.find((i) => i !== examples.a) || examples.a;
  }
}
function browser(content, found, a, b, right) {
  const k = found[examples.place];
  const go = async (place) => {
    const listed = $("#example-list").contains(document.activeElement);
    examples.place = place;
    await render();
    const current = $("#example-list [aria-current]");
    current?.scrollIntoView({ block: "nearest" });
    if (listed) current?.focus();
  };
  const start = Math.max(0, Math.min(examples.place - LISTED / 2, found.length - LISTED));
  const list = h("ul", { class: "examples", id: "example-list", "aria-label": "Examples" }, found.slice(start, start + LISTED).map((i, at) =>
    h("li", {}, h("button", { type: "button", "aria-current": i === k ? "true" : null, onclick: () => go(start + at) },
      h("span", {}, content.ids[i]), h("span", { title: "A, B" }, mark(right(a, i)), mark(right(b, i)))))));
  return h("div", { class: "browser" }, list, h("article", { id: "example" },
    h("div", { class: "controls" },
      h("button", { type: "button", id: "previous", disabled: examples.place === 0, onclick: () => go(examples.place - 1) }, "Previous"),
      h("button", { type: "button", id: "next", disabled: examples.place === found.length - 1, onclick: () => go(examples.place + 1) }, "Next"),
      h("span", { class: "muted" }, `${examples.place + 1} of ${found.length}: ${content.ids[k]}`)),
    h("h3", {}, "Prompt"), h("pre", { id: "prompt" }, content.prompts[k]),
    h("p", { class: "answer" }, "Gold answer: ", h("strong", { id: "gold" }, content.gold[k])),
    h("div", { class: "pair" }, answer("A", examples.a, a, k), answer("B", examples.b, b, k))));
}
const mark = (good) => h("span", { class: good ? "up" : "down", "aria-label": good ? "right" : "wrong" }, good ? "✓" : "✗");
function answer(letter, i, run, k) {
  return h("section", { "aria-label": `Run ${letter}` }, h("h3", {}, `${letter}: ${runName(i)}`),
    data.protocols.map((protocol) => h("p", { class: "answer" }, `${protocol}: `, h("strong", {}, run.answers[protocol][k] ?? "no answer"), " ", mark(run.right[protocol][k] === "1"))),
    h("pre", {}, run.responses[k] || "(empty response)"));
}
