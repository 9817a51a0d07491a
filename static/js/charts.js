/* Charts of allocated and used over time. Loads once, then again every data-every seconds; follows the theme. */

const charts = [...document.querySelectorAll("[data-chart]")];

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function layout(top) {
  const ink = colour("--ink-soft"), line = colour("--line");
  const axis = {gridcolor: line, linecolor: line, zeroline: false, tickfont: {color: ink, size: 11}, fixedrange: true};
  return {
    margin: {l: 38, r: 8, t: 6, b: 26},
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: {family: getComputedStyle(document.body).fontFamily, color: ink, size: 11},
    hovermode: "x unified",
    hoverlabel: {bgcolor: colour("--surface"), bordercolor: colour("--line-strong"), font: {color: colour("--ink")}},
    showlegend: true,
    legend: {orientation: "h", y: 1.14, x: 0, font: {color: ink}},
    xaxis: {...axis, type: "date", showgrid: false, tickformatstops: [
      {dtickrange: [null, 60000], value: "%H:%M:%S"},
      {dtickrange: [60000, 43200000], value: "%H:%M"},
      {dtickrange: [43200000, null], value: "%b %-d"},
    ]},
    yaxis: {...axis, rangemode: "tozero", range: top ? [0, top * 1.08] : undefined},
  };
}

// The charts have no zone of their own: moments are written as the viewer's clock shows them.
function local(moment) {
  const date = new Date(moment);
  return new Date(date.getTime() - date.getTimezoneOffset() * 60000).toISOString().slice(0, -1);
}

function draw(element, data) {
  const at = data.at.map(local);
  const line = (y, name, token, extra) => ({x: at, y, name, mode: "lines", line: {color: colour(token), width: 2, shape: "hv", ...extra}});
  const traces = [
    {...line(data.allocated, element.dataset.allocated, "--chart-1"), fill: "tozeroy", fillcolor: `${colour("--chart-1")}22`},
    line(data.used, element.dataset.used, "--chart-2", {shape: "linear"}),
  ];
  if (element.dataset.capacity && data.capacity?.some((value) => value !== null)) {
    traces.push(line(data.capacity, element.dataset.capacity, "--chart-3", {dash: "dot", width: 1.5}));
  }
  const known = traces.flatMap((trace) => trace.y).filter((value) => value !== null);
  window.Plotly.react(element, traces, layout(Math.max(0, ...known)), {displayModeBar: false, responsive: true});
}

function empty(element) {
  if (element.data) window.Plotly.purge(element);
  const note = document.createElement("div");
  note.className = "empty small";
  note.textContent = element.dataset.empty;
  element.replaceChildren(note);
}

async function load(element) {
  if (document.hidden && element.data) return;
  try {
    const answer = await fetch(element.dataset.chart, {headers: {Accept: "application/json"}});
    if (!answer.ok) throw new Error(String(answer.status));
    const data = (await answer.json()).series;
    if (data.at.length < 2) return empty(element);
    if (element.firstElementChild?.classList.contains("empty")) element.replaceChildren();
    element.series = data;
    draw(element, data);
  } catch {
    if (!element.series) empty(element);
  }
}

for (const element of charts) {
  load(element);
  setInterval(() => load(element), 1000 * Number(element.dataset.every || 15));
}
document.addEventListener("theme:changed", () => charts.forEach((element) => element.series && draw(element, element.series)));
