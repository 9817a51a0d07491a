/* What every page does: menu, theme, notices, questions before destructive acts, times and costs that go on. */

const words = document.documentElement.lang;

// -- menu and theme ---------------------------------------------------------------------------------------------------

const side = document.getElementById("side");
const toggle = document.querySelector("[data-side-toggle]");
let veil = null;

function openSide(open) {
  side.classList.toggle("open", open);
  toggle.setAttribute("aria-expanded", String(open));
  if (open) {
    veil = document.createElement("button");
    veil.className = "veil";
    veil.type = "button";
    veil.tabIndex = -1;
    veil.addEventListener("click", () => openSide(false));
    document.body.append(veil);
    side.querySelector("a").focus();
  } else if (veil) {
    veil.remove();
    veil = null;
    toggle.focus();
  }
}
toggle?.addEventListener("click", () => openSide(!side.classList.contains("open")));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && side?.classList.contains("open")) openSide(false);
});

// -- notices ----------------------------------------------------------------------------------------------------------

export function notice(text, kind = "info") {
  const box = document.getElementById("notices");
  const made = document.getElementById("notice-template")?.content.cloneNode(true);
  if (!box || !made) return;
  made.querySelector("p").textContent = text;
  made.firstElementChild.classList.add(kind);
  box.append(made);
  fade(box.lastElementChild);
}

function fade(element) {
  if (!element.classList.contains("error")) setTimeout(() => element.remove(), 7000);
}
document.querySelectorAll(".notice").forEach(fade);

document.addEventListener("htmx:responseError", (event) => {
  const {xhr} = event.detail;
  if (xhr.getResponseHeader("X-Refusal")) notice(xhr.responseText, "error");
  else if (xhr.status === 403 || xhr.status === 401) location.reload();
});

// A part that was asked for after the session ended answers with the page for signing in: go there instead.
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.xhr.responseURL.includes("/sign-in")) {
    event.detail.shouldSwap = false;
    location.reload();
  }
});

// -- questions --------------------------------------------------------------------------------------------------------

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.dataset.confirm || form.dataset.confirmed) return;
  const ask = document.getElementById("ask");
  if (!ask?.showModal) return;
  event.preventDefault();
  ask.querySelector("h2").textContent = form.dataset.confirmTitle || "";
  ask.querySelector("p").textContent = form.dataset.confirm;
  ask.returnValue = "no";
  ask.showModal();
  ask.addEventListener("close", () => {
    if (ask.returnValue !== "yes") return;
    form.dataset.confirmed = "yes";
    form.requestSubmit();
  }, {once: true});
});

// -- clicks -----------------------------------------------------------------------------------------------------------

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.matches("[data-theme-toggle]")) window.allotmentTheme();
  if (button.matches("[data-dismiss]")) button.closest(".notice").remove();
  if (button.dataset.copy) copy(document.querySelector(button.dataset.copy).textContent, button);
  if (button.dataset.fill) fill(document.getElementById(button.dataset.fill), button.value);
});

export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 1500);
  } catch {
    notice(text);
  }
}

function fill(field, value) {
  field.value = value;
  field.focus();
  field.dispatchEvent(new Event("input", {bubbles: true}));
}

// -- times ------------------------------------------------------------------------------------------------------------

function duration(seconds) {
  const total = Math.max(0, Math.floor(seconds));
  const pad = (number) => String(number).padStart(2, "0");
  const minutes = Math.floor(total / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (days) return `${days} d ${hours % 24} h`;
  if (hours) return `${hours} h ${pad(minutes % 60)} min`;
  if (minutes) return `${minutes} min ${pad(total % 60)} s`;
  return `${total} s`;
}

const clock = new Intl.DateTimeFormat(words, {hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false});
const full = new Intl.DateTimeFormat(words, {dateStyle: "medium", timeStyle: "medium"});

function showTimes() {
  const now = Date.now();
  for (const time of document.querySelectorAll("time[data-show]")) {
    const moment = new Date(time.dateTime);
    const since = (now - moment) / 1000;
    let text = time.textContent;
    if (time.dataset.show === "elapsed") text = duration(since);
    if (time.dataset.show === "ago") text = time.dataset.words.replace("%(duration)s", duration(since));
    if (time.dataset.show === "clock") text = clock.format(moment);
    if (text !== time.textContent) time.textContent = text;
    if (!time.dataset.titled) {
      time.title = full.format(moment);
      time.dataset.titled = "yes";
    }
  }
}

// -- costs: between two answers of the server they go on at the price of the moment ------------------------------------

function showCosts() {
  for (const element of document.querySelectorAll("[data-tick]")) {
    const hourly = Number(element.dataset.tickHour);
    const number = element.querySelector(".num");
    if (!hourly || !number) continue;
    const hours = (Date.now() - new Date(element.dataset.tickAt)) / 3_600_000;
    const amount = Number(element.dataset.tick) + hourly * Math.max(0, hours);
    const places = amount < 1 ? 4 : 2;
    const text = amount.toLocaleString("en", {minimumFractionDigits: places, maximumFractionDigits: places});
    const shown = number.textContent.replace(/[\d.,]+/, text);
    if (shown !== number.textContent) number.textContent = shown;
  }
}

function tick() {
  if (document.hidden) return;
  showTimes();
  showCosts();
}
tick();
setInterval(tick, 1000);
document.addEventListener("htmx:afterSettle", tick);

// -- a status that changed is noticed -----------------------------------------------------------------------------------

const states = new Map();
function noteStates(flash) {
  for (const place of document.querySelectorAll("#job-state, tr[id^='job-'] .state-cell")) {
    const badge = place.querySelector(".status");
    const key = place.id || place.parentElement.id;
    if (flash && states.has(key) && states.get(key) !== badge?.dataset.state) badge.classList.add("state-flash");
    states.set(key, badge?.dataset.state);
  }
}
noteStates(false);
document.addEventListener("htmx:afterSettle", () => noteStates(true));

// -- lists: choosing rows, new rows, filters that apply by themselves -------------------------------------------------------

const bulk = document.getElementById("bulk");
function countPicked() {
  if (!bulk) return;
  const picked = document.querySelectorAll("input[name=job]:checked");
  bulk.hidden = picked.length === 0;
  bulk.querySelector("[data-picked]").textContent = picked.length;
  document.querySelectorAll("input[name=job]").forEach((box) => {
    box.closest("tr").setAttribute("aria-selected", String(box.checked));
  });
}
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-pick-all]")) {
    document.querySelectorAll("input[name=job]:not(:disabled)").forEach((box) => { box.checked = event.target.checked; });
  }
  if (event.target.matches("[data-pick-all], input[name=job]")) countPicked();
  if (event.target.matches("[data-auto-submit] select")) event.target.form.requestSubmit();
});
// A row that is drawn anew stays chosen.
document.addEventListener("htmx:beforeSwap", (event) => {
  const box = event.detail.target.querySelector?.("input[name=job]");
  if (box?.checked) event.detail.target.dataset.kept = box.value;
});
document.addEventListener("htmx:afterSettle", countPicked);

const fresh = document.querySelector("[data-new-rows]");
if (fresh) {
  let count = 0;
  document.addEventListener("live:job", (event) => {
    if (!event.detail.kinds?.includes("job.submitted") || document.getElementById(`job-${event.detail.id}`)) return;
    count += 1;
    fresh.hidden = false;
    fresh.querySelector("span").textContent = `+${count}`;
  });
  fresh.addEventListener("click", () => location.reload());
}

// An answer of the form that is asked for again after an error puts the cursor where the error is.
document.querySelector("[aria-invalid=true]")?.focus();
