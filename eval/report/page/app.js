// The page itself: tabs, filters, keyboard, light and dark.

const VIEWS = {
  results: ["Results", resultsView], runs: ["Runs", runsView], trade: ["Trade-offs", tradeView],
  tasks: ["Tasks", tasksView], curves: ["Curves", curvesView], examples: ["Examples", examplesView],
};

let drawing = 0;
async function render() {
  const mine = ++drawing;
  const { rehearsal } = chosen();
  $("#rehearsal").hidden = !rehearsal;
  document.title = `${rehearsal ? "REHEARSAL – " : ""}${suite().label} – DyPAM results`;
  for (const tab of $("#tabs").children) {
    const current = tab.dataset.view === state.view;
    tab.setAttribute("aria-selected", current);
    tab.tabIndex = current ? 0 : -1;
  }
  const focused = document.activeElement?.id;
  const content = await VIEWS[state.view][1]();
  if (mine !== drawing) return;
  $("#main").replaceChildren(h("section", { id: "panel", role: "tabpanel", "aria-labelledby": `tab-${state.view}` }, content));
  if (focused && $(`#main #${CSS.escape(focused)}`)) $(`#main #${CSS.escape(focused)}`).focus();
}
function show(view) {
  state.view = VIEWS[view] ? view : "results";
  history.replaceState(null, "", `#${state.view}`);
  return render();
}

function theme(choice) {
  const modes = ["auto", "light", "dark"];
  if (choice === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
  $("#theme").textContent = `Colours: ${choice}`;
  $("#theme").onclick = () => theme(modes[(modes.indexOf(choice) + 1) % 3]);
  try { localStorage.setItem("theme", choice); } catch { /* files may have no storage */ }
}
function storedTheme() {
  try { return localStorage.getItem("theme") || "auto"; } catch { return "auto"; }
}

function fillControls() {
  const groups = [...new Set(data.runs.map(groupKey))].sort((a, b) => a.at(-1) - b.at(-1));
  const name = (key) => data.suites[key.split("|")[0]].label + (key.endsWith("|1") ? " – REHEARSAL" : "");
  $("#group").replaceChildren(...groups.map((key) => option(key, name(key))));
  $("#protocol").replaceChildren(...data.protocols.map((protocol) => option(protocol, protocol)));
  state.group = groups[0] || "";
  state.protocol = data.protocols[0];
  fillBackbones();
  $("#group").onchange = (event) => { state.group = event.target.value; state.backbone = ""; fillBackbones(); render(); };
  $("#protocol").onchange = (event) => { state.protocol = event.target.value; render(); };
  $("#backbone").onchange = (event) => { state.backbone = event.target.value; render(); };
  $("#text").oninput = (event) => { state.text = event.target.value.trim(); render(); };
  $("#controls").onsubmit = (event) => event.preventDefault();
}
function fillBackbones() {
  const names = [...new Set(data.runs.filter((run) => groupKey(run) === state.group).map((run) => run.backbone))];
  $("#backbone").replaceChildren(option("", "All"), ...names.map((name) => option(name, backboneLabel(name))));
}
function fillTabs() {
  $("#tabs").replaceChildren(...Object.entries(VIEWS).map(([key, [label]]) =>
    h("button", { type: "button", role: "tab", id: `tab-${key}`, "data-view": key, "aria-controls": "panel", onclick: () => show(key) }, label)));
  $("#tabs").onkeydown = (event) => {
    const keys = Object.keys(VIEWS), at = keys.indexOf(state.view);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: keys.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = keys[(to + keys.length) % keys.length];
    show(next);
    $(`#tab-${next}`).focus();
  };
}
function shortcuts(event) {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || $("#dialog").open;
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") { event.preventDefault(); $("#text").focus(); }
  if (state.view === "examples" && event.key === "j") $("#next")?.click();
  if (state.view === "examples" && event.key === "k") $("#previous")?.click();
}

async function start() {
  theme(storedTheme());
  if (!window.DecompressionStream) throw new Error("this browser cannot unpack the page’s data; use one from 2023 or later");
  data = await unpack("index");
  $("#warnings").replaceChildren(...data.warnings.map((text) => h("p", { class: "warning" }, text)));
  if (!data.runs.length) throw new Error("no runs were found when this page was made");
  fillControls();
  fillTabs();
  await show(location.hash.slice(1));
  document.addEventListener("keydown", shortcuts);
  let waiting = 0, width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(render, 150);
  });
  document.documentElement.dataset.ready = "true";
}
start().catch((error) => { $("#main").replaceChildren(h("p", { class: "banner", role: "alert" }, `Nothing to show: ${error.message}.`)); });
