// Views made of plots: trade-offs, tasks, learning curves.

const COSTS = {
  params: "Trainable parameters (%)", memory: "Peak memory (GB)", train_speed: "Training tokens/s", generate_speed: "Generated tokens/s",
};
const trade = { cost: "params", column: "micro" };
function tradeView() {
  const better = trade.cost.endsWith("speed") ? 1 : -1;
  const names = [...new Set(runs().map((run) => run.backbone))];
  const points = rowsOf(runs()).flatMap((row) => {
    const y = cellsOf(row.members, trade.column, "mean");
    const costs = row.members.map((run) => run[trade.cost]).filter((value) => value !== null && value !== undefined);
    if (y.value === null || !costs.length) return [];
    const x = mean(costs);
    const text = `${methodLabel(row.method)}, ${backboneLabel(row.backbone)}: ${number(y.value)} % ± ${number(y.spread)} (${plural(y.n, "run")}), ${COSTS[trade.cost].toLowerCase()} ${Number(x.toPrecision(4))}`;
    return [{ x, y: y.value, ...series(row.method), label: methodLabel(row.method), shape: names.indexOf(row.backbone), backbone: row.backbone, method: row.method, text }];
  });
  const fronts = names.map((name) => {
    const own = points.filter((p) => p.backbone === name);
    return own.filter((p) => !own.some((q) => (q.x - p.x) * better >= 0 && q.y >= p.y && (q.x !== p.x || q.y !== p.y))).sort((a, b) => a.x - b.x);
  });
  const xs = points.map((p) => p.x);
  const log = xs.length > 0 && Math.min(...xs) > 0 && Math.max(...xs) / Math.min(...xs) > 30;
  const title = `Accuracy against ${COSTS[trade.cost].toLowerCase()}`;
  return [
    h("div", { class: "controls" },
      chooser("Cost", "cost", Object.entries(COSTS), trade.cost, (value) => { trade.cost = value; render(); }),
      chooser("Accuracy", "trade-column", columns().map((c) => [c.key, c.label]), trade.column, (value) => { trade.column = value; render(); })),
    h("h2", {}, title, rehearsalBadge()),
    points.length ? scatter({ points, fronts, xLabel: COSTS[trade.cost] + (log ? ", log scale" : ""), yLabel: "Accuracy (%)", title, log })
      : h("p", { class: "muted" }, "No scored run here has recorded this cost."),
    marksLegend([...new Set(points.map((p) => p.method))]),
    h("ul", { class: "legend" }, names.map((name, i) => h("li", {}, s("svg", { width: 16, height: 16, "aria-hidden": "true" }, shapes[i % shapes.length](8, 8)), " ", backboneLabel(name)))),
    h("p", { class: "note" }, "Means over seeds. A dashed line joins the methods that no other method of their backbone beats in both."),
  ];
}

const tasks = { seed: "" };
function onlyBackbone() {
  const names = [...new Set(runs().map((run) => run.backbone))];
  return state.backbone || names[0];
}
function tasksView() {
  const backbone = onlyBackbone();
  const members = runs().filter((run) => run.backbone === backbone && isScored(run));
  const seeds = seedsOf(members).map(String);
  if (!seeds.includes(tasks.seed)) tasks.seed = seeds[0] || "";
  const shown = members.filter((run) => String(run.seed) === tasks.seed);
  const figures = columns().map(({ key, label, test }) => {
    const marks = shown.map((run) => {
      const [value, low, high] = run.cells[state.protocol][key];
      const range = low === undefined ? "" : `, 95 % interval ${number(low)} – ${number(high)}`;
      return { value, low, high, label: methodLabel(run.method), ...series(run.method), text: `${methodLabel(run.method)}: ${number(value)} %${range}` };
    }).sort((a, b) => b.value - a.value);
    const guides = test?.chance ? [{ value: 100 * test.chance, label: "chance" }] : [];
    const title = `${label}${test ? `, n = ${test.rows.toLocaleString("en")}` : ""}${test?.chance ? `, chance ${number(100 * test.chance, 0)} %` : ""}${test?.contaminated ? " †" : ""}`;
    return marks.length ? intervalPlot({ marks, guides, title }) : null;
  });
  return [
    h("div", { class: "controls" }, chooser("Seed", "task-seed", seeds.map((seed) => [seed, seed]), tasks.seed, (value) => { tasks.seed = value; render(); })),
    h("h2", {}, `${backboneLabel(backbone) || "No run"}, seed ${tasks.seed || "—"}`, rehearsalBadge()),
    shown.length ? h("div", { class: "plots" }, figures) : h("p", { class: "muted" }, "No scored run matches."),
    h("p", { class: "note" }, "Bars: 95 % interval over the examples of one run (Wilson’s; bootstrap for the averages). Dashed line: chance."),
  ];
}

const curve = { seed: "", most: 14 };
async function curvesView() {
  const all = await unpack("curves");
  const backbone = onlyBackbone();
  const members = runs().filter((run) => run.backbone === backbone);
  const seeds = seedsOf(members).map(String);
  if (!seeds.includes(curve.seed)) curve.seed = seeds[0] || "";
  const shown = members.filter((run) => String(run.seed) === curve.seed).slice(0, curve.most);
  const lines = (kind) => shown.map((run) => {
    const [xs, ys] = all[data.runs.indexOf(run)][kind];
    return { xs, ys, ...series(run.method), label: methodLabel(run.method) };
  });
  return [
    h("div", { class: "controls" }, chooser("Seed", "curve-seed", seeds.map((seed) => [seed, seed]), curve.seed, (value) => { curve.seed = value; render(); })),
    h("h2", {}, `${backboneLabel(backbone) || "No run"}, seed ${curve.seed || "—"}`, rehearsalBadge()),
    legend(shown.map((run) => run.method)),
    h("h3", {}, "Training loss"), linePlot({ lines: lines("loss"), xLabel: "Step", yLabel: "Training loss", title: "Training loss" }),
    h("h3", {}, "Validation loss"), linePlot({ lines: lines("val_loss"), xLabel: "Step", yLabel: "Validation loss", title: "Validation loss" }),
    h("p", { class: "note" }, `Long runs are thinned: each point is the mean of a stretch of steps. At most ${curve.most} runs at once; narrow them down with the filter.`),
  ];
}
