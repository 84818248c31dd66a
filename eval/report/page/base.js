"use strict";
// What every view needs: elements, packed data, numbers, the chosen group of runs.

const $ = (selector, root = document) => root.querySelector(selector);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}
const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}
const unpacked = new Map();
function unpack(name) {
  if (!unpacked.has(name)) {
    const stream = new Blob([bytesOf($(`#chunk-${name}`).textContent)]).stream();
    unpacked.set(name, new Response(stream.pipeThrough(new DecompressionStream("gzip"))).json());
  }
  return unpacked.get(name);
}

let data = null;
const state = { view: "results", group: "", protocol: "", backbone: "", text: "", sort: {} };

const number = (value, digits = 2) => (value === null || value === undefined ? "—" : value.toFixed(digits));
const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
function deviation(values) {
  if (values.length < 2) return null;
  const middle = mean(values);
  return Math.sqrt(values.reduce((sum, v) => sum + (v - middle) ** 2, 0) / (values.length - 1));
}

const methodLabel = (name) => data.methods[name] || name;
const backboneLabel = (name) => data.backbones[name] || name;
const groupKey = (run) => `${run.suite}|${run.rehearsal ? 1 : 0}`;
const chosen = () => ({ suite: state.group.split("|")[0], rehearsal: state.group.endsWith("|1") });
const suite = () => data.suites[chosen().suite];
const columns = () => [
  ...suite().tests.map((test) => ({ key: test.name, label: test.label, test })),
  { key: "micro", label: "Micro" },
  { key: "macro", label: "Macro" },
];
const rehearsalBadge = () => (chosen().rehearsal ? h("span", { class: "badge" }, "REHEARSAL") : null);

function matches(run) {
  if (groupKey(run) !== state.group || (state.backbone && run.backbone !== state.backbone)) return false;
  const words = `${run.method} ${methodLabel(run.method)} ${run.backbone} ${backboneLabel(run.backbone)} ${run.status} seed${run.seed}`;
  return state.text.toLowerCase().split(/\s+/).every((word) => words.toLowerCase().includes(word));
}
const runs = () => data.runs.filter(matches);
const isScored = (run) => Boolean(run.cells[state.protocol]);
const accuracy = (run, column) => run.cells[state.protocol]?.[column]?.[0] ?? null;

// One row for each backbone and method; `value` and `spread` over the runs that are meant.
function cellsOf(members, column, show) {
  const wanted = members.filter((run) => isScored(run) && (show === "mean" || String(run.seed) === show));
  const values = wanted.map((run) => accuracy(run, column)).filter((value) => value !== null);
  if (!values.length) return { value: null, spread: null, n: 0 };
  return { value: mean(values), spread: show === "mean" ? deviation(values) : null, n: values.length };
}
function rowsOf(members) {
  const groups = new Map();
  for (const run of members) {
    const key = `${run.backbone} ${run.method}`;
    if (!groups.has(key)) groups.set(key, { backbone: run.backbone, method: run.method, members: [], published: data.published[run.suite][key] });
    groups.get(key).members.push(run);
  }
  return [...groups.values()].map((row) => ({ ...row, published: chosen().rehearsal ? undefined : row.published }));
}

const order = ["dypam"];
function series(method) {
  const names = [...order, ...Object.keys(data.methods).filter((name) => !order.includes(name)).sort()];
  const i = names.indexOf(method);
  return { colour: i % 7, style: Math.floor(i / 7) % 3 };
}
const option = (value, label, current) => h("option", { value, selected: value === current }, label);
const chooser = (label, id, options, current, onchange) =>
  h("label", {}, label, " ", h("select", { id, onchange: (event) => onchange(event.target.value) }, options.map(([value, name]) => option(value, name, current))));
