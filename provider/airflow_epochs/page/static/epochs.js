// Charts, times in the reader's own zone, links to Airflow's pages, and a look every ten seconds. Tables need none of it.
"use strict";

const REFRESH_MS = 10000;

function age(seconds) {
  const steps = [[60, 1, "s"], [3600, 60, "min"], [86400, 3600, "h"], [Infinity, 86400, "d"]];
  const [, size, unit] = steps.find(([limit]) => Math.abs(seconds) < limit);
  return `${Math.floor(seconds / size)} ${unit}`;
}

function tellTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const date = new Date(time.getAttribute("datetime"));
    if (isNaN(date)) continue;
    time.textContent = `${age((Date.now() - date) / 1000)} ago`;
    time.title = date.toLocaleString(undefined, { timeZoneName: "short" }) + "\n" + time.getAttribute("datetime");
  }
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

let drawn = [];

function drawCharts(root) {
  drawn.forEach((chart) => chart.destroy());
  drawn = [];
  const told = root.querySelector("#charts");
  if (!told) return;
  const data = JSON.parse(told.textContent);
  for (const figure of root.querySelectorAll("figure[data-chart]")) {
    const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false } };
    const options = {
      width: figure.clientWidth - 16, height: 150, legend: { show: false }, cursor: { y: false }, // 16: its padding
      scales: { x: { time: true, range: around }, y: { range: (chart, low, high) => [0, Math.max(high, 1) * 1.1] } },
      axes: [{ ...axis, space: 80 }, { ...axis, size: 58, values: (chart, ticks) => ticks.map((tick) => shortNumber(tick)) }],
      series: [{}, {
        stroke: color("--accent"), fill: color("--accent-faint"), width: 1.5,
        points: { show: data.at.length < 60, size: 4, fill: color("--accent") },
      }],
      hooks: { setCursor: [(chart) => point(chart, figure, data)] },
    };
    drawn.push(new uPlot(options, [data.at, data[figure.dataset.chart]], figure));
  }
}

// One moment alone has an hour around it: uPlot would show the thousand days that follow one epoch.
function around(chart, first, last) {
  const moments = chart.data[0], moment = moments[0];
  return moment === moments[moments.length - 1] ? [moment - 1800, moment + 1800] : [first, last];
}

function shortNumber(value) {
  return Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 }).format(value);
}

function point(chart, figure, data) {
  const index = chart.cursor.idx;
  const caption = figure.querySelector("figcaption");
  caption.dataset.name ??= caption.textContent;
  const value = index == null ? null : data[figure.dataset.chart][index];
  const waited = figure.dataset.chart === "left" ? data.waited?.[index] : null;
  caption.textContent = caption.dataset.name +
    (value == null ? "" : `: ${Intl.NumberFormat(undefined, { maximumFractionDigits: 1 }).format(value)} in epoch ${data.epoch[index]}`) +
    (waited ? `, for at most ${age(waited)}` : "");
}

// Airflow's frame may neither navigate the page around it nor open another one. Its own document may, and has our origin.
document.addEventListener("click", (event) => {
  const link = event.target.closest("a.airflow, a.outside");
  if (!link || window.parent === window) return;
  event.preventDefault();
  const outer = window.parent.document.createElement("a");
  outer.href = link.href;
  if (event.ctrlKey || event.metaKey || link.matches(".outside")) outer.target = "_blank";
  outer.rel = link.rel;
  outer.click();
});

// The source is asked apart from the page, because a broker may take longer than a ledger.
let lags = new Map();

async function tellLags(root, ask) {
  for (const cell of root.querySelectorAll("[data-lag]")) cell.textContent = lags.get(cell.dataset.lag) ?? "…";
  if (!ask) return;
  const asked = Array.from(root.querySelectorAll("[data-lag]"), async (cell) => {
    lags.set(cell.dataset.lag, await lagOf(cell.dataset.lag));
    cell.textContent = lags.get(cell.dataset.lag);
  });
  await Promise.all(asked);
}

async function lagOf(path) {
  try {
    const answer = await fetch(path);
    const lag = answer.ok ? await answer.json() : {};
    if (lag.records == null) return "not known";
    if (lag.records === 0) return "none";
    return `${Intl.NumberFormat().format(lag.records)} records, ${age(lag.seconds)}`;
  } catch (error) {
    return "not known";
  }
}

// Only pages with data-live are asked for again. At the address of a form, or of its answer, there is an empty form.
async function refresh() {
  const main = document.getElementById("main");
  if (!("live" in main.dataset)) return;
  const busy = document.querySelector("details[open], form :focus, dialog[open]") || getSelection().toString();
  if (busy) return;
  let answer;
  try {
    answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  } catch (error) {
    return; // the server is away: what is shown stays
  }
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("main");
  if (!fresh || fresh.innerHTML === main.dataset.seen) return;
  const seen = fresh.innerHTML;
  main.replaceChildren(...fresh.childNodes);
  main.dataset.seen = seen;
  show();
}

function look() {
  if (document.hidden) return;
  refresh();
  tellLags(document, true);
}

function show() {
  const main = document.getElementById("main");
  tellTimes(main);
  tellLags(main, false);
  drawCharts(main);
}

document.getElementById("main").dataset.seen = document.getElementById("main").innerHTML;
show();
tellLags(document, true);
document.addEventListener("theme", show);
let resized;
addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(show, 100); });
setInterval(() => tellTimes(document), 1000);
setInterval(look, REFRESH_MS);
