/* The map of a pool: every node a block, every device a cell that fills from below. Drawn on a canvas, so that ten
 * thousand devices stay smooth; what changes is drawn alone. Pointer and arrow keys choose a device. */

const box = document.getElementById("map");
const canvas = box.querySelector("canvas");
const tip = box.querySelector(".map-tip");
const said = document.getElementById("map-said");
const words = JSON.parse(box.dataset.words);
const pen = canvas.getContext("2d");

let mode = "allocation";
let nodes = [], cells = [], byId = new Map(), nodesById = new Map(), models = [], teams = new Map();
let chosen = null, colours = {}, size = 16, width = 0, height = 0;
const dirty = new Set();
let planned = false;

// Told apart in both themes and by most kinds of colour vision; a team's own colour goes before.
const PALETTE = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#5f7f95"];

function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["empty", "own", "other", "failed", "away", "cold", "warm", "hot", "unknown", "select"]) {
    colours[name] = style.getPropertyValue(`--map-${name}`).trim();
  }
  colours.good = style.getPropertyValue("--tone-good").trim();
  colours.ink = style.getPropertyValue("--ink-soft").trim();
}

async function load() {
  const answer = await fetch(box.dataset.map, {headers: {Accept: "application/json"}});
  if (!answer.ok) return;
  const data = await answer.json();
  models = data.models;
  teams = new Map(data.teams.map(([slug, name, own], i) => [slug, {name, colour: own || PALETTE[i % PALETTE.length]}]));
  nodes = data.nodes.map((node) => ({...node, devices: []}));
  nodesById = new Map(nodes.map((node) => [node.id, node]));
  cells = [];
  data.nodes.forEach((node, n) => node.devices.forEach(([id, model, failed, allocated, used, slices], index) => {
    const cell = {id, model, failed, allocated, used, slices: slices.map(([job, team, milli]) => ({job, team, milli})), node: nodes[n], index};
    nodes[n].devices.push(cell);
    cells.push(cell);
  }));
  byId = new Map(cells.map((cell) => [cell.id, cell]));
  if (chosen) chosen = byId.get(chosen.id) ?? null;
  teamLegend();
  lay();
}

// -- layout: nodes in rows, grouped as they are ranked; the cell's size follows the number of devices ------------------------

function lay() {
  width = box.clientWidth;
  const total = Math.max(cells.length, nodes.length, 1);
  size = total <= 16 ? 52 : total <= 64 ? 34 : total <= 300 ? 22 : total <= 1500 ? 14 : total <= 4000 ? 9 : 6;
  if (width < 500) size = Math.max(6, Math.round(size * 0.8));
  const gap = size > 10 ? 2 : 1, between = size > 10 ? 8 : 4, label = size >= 22 ? 14 : 0;
  let x = 0, y = 0, tallest = 0, kind = null;
  for (const node of nodes) {
    const across = Math.min(Math.max(node.devices.length, 1), node.devices.length > 8 ? 8 : 4);
    const rows = Math.max(1, Math.ceil(node.devices.length / across));
    const wide = across * (size + gap) - gap, high = rows * (size + gap) - gap + label;
    const now = node.devices[0]?.model ?? -1;
    if (x > 0 && (x + wide > width || (kind !== null && now !== kind))) {
      const apart = kind !== null && now !== kind;
      x = 0;
      y += tallest + between + (apart && cells.length > 64 ? between : 0);
      tallest = 0;
    }
    if (now !== kind && cells.length > 0) {
      y += models.length > 1 || nodes.length > 8 ? 16 : 0;
      node.heading = now < 0 ? "CPU" : models[now];
    } else {
      node.heading = null;
    }
    kind = now;
    Object.assign(node, {x, y: y + label, wide, high: high - label, headY: y});
    node.devices.forEach((cell, i) => {
      cell.x = x + (i % across) * (size + gap);
      cell.y = y + label + Math.floor(i / across) * (size + gap);
    });
    tallest = Math.max(tallest, high);
    x += wide + between;
  }
  height = y + tallest + 4;
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  drawAll();
}

// -- drawing -------------------------------------------------------------------------------------------------------------

function mix(from, to, part) {
  const hex = (text, i) => parseInt(text.slice(1 + 2 * i, 3 + 2 * i), 16);
  return `rgb(${[0, 1, 2].map((i) => Math.round(hex(from, i) + (hex(to, i) - hex(from, i)) * part)).join(" ")})`;
}

function heat(used) {
  const part = Math.min(1, Math.max(0, used / 1000));
  return part < 0.5 ? mix(colours.cold, colours.warm, part * 2) : mix(colours.warm, colours.hot, part * 2 - 1);
}

function drawCell(cell) {
  const {x, y} = cell;
  const away = cell.node.state !== "ready";
  pen.clearRect(x - 2, y - 2, size + 4, size + 4);
  pen.fillStyle = away ? colours.away : colours.empty;
  if (mode === "use") pen.fillStyle = cell.used === null ? colours.unknown : heat(cell.used);
  if (mode === "health") pen.fillStyle = away ? colours.away : colours.good;
  pen.fillRect(x, y, size, size);
  if (mode === "allocation" || mode === "team") drawSlices(cell);
  if (cell.failed) hatch(x, y, colours.failed);
  if (away) {
    pen.strokeStyle = colours.ink;
    pen.setLineDash([2, 2]);
    pen.lineWidth = 1;
    pen.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    pen.setLineDash([]);
  }
  if (cell === chosen) {
    pen.strokeStyle = colours.select;
    pen.lineWidth = 2;
    pen.strokeRect(x - 1, y - 1, size + 2, size + 2);
  }
}

/* From below: the slices that the viewer may see, then what others hold. To scale; a seam between two slices. */
function drawSlices(cell) {
  let from = 0;
  const put = (milli, fill) => {
    const low = Math.round((from / 1000) * size), high = Math.round(((from + milli) / 1000) * size);
    const tall = Math.max(high - low, milli > 0 ? 1 : 0);
    pen.fillStyle = fill;
    const seam = from > 0 && size >= 14 ? 1 : 0;
    pen.fillRect(cell.x, cell.y + size - low - tall, size, Math.max(1, tall - seam));
    from += milli;
  };
  let own = 0;
  for (const slice of cell.slices) {
    put(slice.milli, mode === "team" ? teams.get(slice.team)?.colour ?? colours.own : colours.own);
    own += slice.milli;
  }
  if (cell.allocated > own) put(cell.allocated - own, colours.other);
}

function hatch(x, y, colour) {
  pen.save();
  pen.beginPath();
  pen.rect(x, y, size, size);
  pen.clip();
  pen.strokeStyle = colour;
  pen.lineWidth = 1.5;
  for (let step = -size; step < size; step += 4) {
    pen.beginPath();
    pen.moveTo(x + step, y + size);
    pen.lineTo(x + step + size, y);
    pen.stroke();
  }
  pen.restore();
  pen.strokeStyle = colour;
  pen.lineWidth = 1;
  pen.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
}

function drawNode(node) {
  if (node.devices.length === 0) {
    pen.fillStyle = node.state === "ready" ? colours.empty : colours.away;
    pen.fillRect(node.x, node.y, size, size);
  }
  node.devices.forEach(drawCell);
}

function drawAll() {
  pen.clearRect(0, 0, width, height);
  pen.font = `600 11px ${getComputedStyle(document.body).fontFamily}`;
  pen.textBaseline = "alphabetic";
  for (const node of nodes) {
    pen.fillStyle = colours.ink;
    if (node.heading && (models.length > 1 || nodes.length > 8)) pen.fillText(node.heading, 0, node.headY - 5);
    if (size >= 22) {
      pen.save();
      pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
      pen.fillText(node.name.length * 6 > node.wide + 6 ? `${node.name.slice(0, Math.floor(node.wide / 6))}…` : node.name, node.x, node.headY + 10);
      pen.restore();
    }
    drawNode(node);
  }
  if (chosen) drawCell(chosen);
}

function later(cell) {
  dirty.add(cell);
  if (planned) return;
  planned = true;
  requestAnimationFrame(() => {
    planned = false;
    dirty.forEach(drawCell);
    dirty.clear();
    if (chosen) drawCell(chosen);
  });
}

// -- live ----------------------------------------------------------------------------------------------------------------

document.addEventListener("live:device", ({detail}) => {
  const cell = byId.get(detail.id);
  if (!cell) return;
  cell.allocated = detail.allocated;
  cell.used = detail.used;
  cell.failed = detail.health === "failed";
  cell.slices = (detail.slices ?? []).map((slice) => ({job: slice.job, team: slice.team, milli: slice.compute}));
  box.dataset.changed = String(detail.id);
  later(cell);
  if (cell === chosen) soon();
});
document.addEventListener("live:node", ({detail}) => {
  const node = nodesById.get(detail.id);
  if (!node) return;
  node.state = detail.state;
  node.devices.forEach(later);
});
document.addEventListener("live:resync", load);
document.addEventListener("live:event", ({detail}) => { if (detail.kinds.includes("nodes.added")) load(); });

// -- choosing ------------------------------------------------------------------------------------------------------------

function cellAt(event) {
  const frame = canvas.getBoundingClientRect();
  const x = event.clientX - frame.left, y = event.clientY - frame.top;
  return cells.find((cell) => x >= cell.x && x < cell.x + size && y >= cell.y && y < cell.y + size) ?? null;
}

function gpus(milli) { return String(milli / 1000); }

function lines(cell) {
  const own = cell.slices.reduce((sum, slice) => sum + slice.milli, 0);
  const found = [`${gpus(cell.allocated)} ${words.allocated}, ${gpus(1000 - cell.allocated)} ${words.free}`];
  const byTeam = new Map();
  cell.slices.forEach((slice) => byTeam.set(slice.team, (byTeam.get(slice.team) ?? 0) + slice.milli));
  byTeam.forEach((milli, team) => found.push(`${teams.get(team)?.name ?? team}: ${gpus(milli)}`));
  if (cell.allocated > own) found.push(`${words.others}: ${gpus(cell.allocated - own)}`);
  found.push(cell.used === null ? words.unknown : `${Math.round(cell.used / 10)} % ${words.used}`);
  if (cell.failed) found.push(words.failed);
  return found;
}

function title(cell) { return `${cell.node.name} · ${words.device} ${cell.index}`; }

function showTip(cell) {
  tip.hidden = cell === null;
  if (!cell) return;
  const head = document.createElement("b");
  head.textContent = title(cell);
  tip.replaceChildren(head, ...[models[cell.model], ...lines(cell)].map((text) => {
    const line = document.createElement("div");
    line.textContent = text;
    return line;
  }));
  const left = Math.min(cell.x + size + 8, width - tip.offsetWidth - 4);
  tip.style.transform = `translate(${Math.max(0, left)}px, ${cell.y + size + 6}px)`;
}

function choose(cell, speak) {
  const before = chosen;
  chosen = cell;
  if (before) drawCell(before);
  if (!cell) return;
  drawCell(cell);
  if (speak) said.textContent = `${title(cell)}. ${lines(cell).join(". ")}`;
}

function detail() {
  if (!chosen) return;
  const address = box.dataset.device.replace("/0/", `/${chosen.id}/`);
  window.htmx.ajax("GET", address, {target: "#device", swap: "innerHTML"});
}
let waiting = null;
function soon() {
  clearTimeout(waiting);
  waiting = setTimeout(detail, 400);
}

canvas.addEventListener("pointermove", (event) => showTip(cellAt(event)));
canvas.addEventListener("pointerleave", () => showTip(null));
canvas.addEventListener("click", (event) => {
  choose(cellAt(event), false);
  detail();
});
canvas.addEventListener("blur", () => showTip(null));
canvas.addEventListener("keydown", (event) => {
  const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
  const turn = {ArrowDown: 1, ArrowUp: -1}[event.key];
  if (event.key === "Enter" && chosen) return detail();
  if (!step && !turn) return undefined;
  event.preventDefault();
  const from = chosen ?? cells[0];
  let next = chosen ? cells[cells.indexOf(from) + (step ?? 0)] : cells[0];
  if (chosen && turn) next = nearest(from, turn);
  if (next) {
    choose(next, true);
    showTip(next);
    soon();
  }
  return undefined;
});

function nearest(from, turn) {
  let best = null, least = Infinity;
  for (const cell of cells) {
    const down = (cell.y - from.y) * turn;
    if (down <= 0) continue;
    const far = down * 4 + Math.abs(cell.x - from.x);
    if (far < least) [best, least] = [cell, far];
  }
  return best;
}

// -- modes and theme ----------------------------------------------------------------------------------------------------

function teamLegend() {
  const legend = document.querySelector("[data-map-legend=team]");
  const present = new Set(cells.flatMap((cell) => cell.slices.map((slice) => slice.team)));
  const entries = [...teams].filter(([slug]) => present.has(slug)).map(([, team]) => [team.name, team.colour]);
  legend.replaceChildren(...[...entries, [words.others, colours.other]].map(([name, fill]) => {
    const entry = document.createElement("span"), swatch = document.createElement("i");
    swatch.className = "swatch";
    swatch.style.background = fill;
    entry.append(swatch, name);
    return entry;
  }));
}

document.querySelector("[data-map-modes]").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  mode = button.value;
  document.querySelectorAll("[data-map-modes] button").forEach((each) => each.setAttribute("aria-pressed", String(each === button)));
  document.querySelectorAll("[data-map-legend]").forEach((each) => { each.hidden = each.dataset.mapLegend !== mode; });
  if (mode === "team") teamLegend();
  drawAll();
});
document.addEventListener("theme:changed", () => { readColours(); teamLegend(); drawAll(); });
new ResizeObserver(() => { if (Math.abs(box.clientWidth - width) > 1) lay(); }).observe(box);

// For tests and the curious: what the map holds of a device.
canvas.deviceState = (id) => { const cell = byId.get(id); return cell && {allocated: cell.allocated, used: cell.used, slices: cell.slices.length}; };

readColours();
load();
