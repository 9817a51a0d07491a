/* The browser side of the live socket. An ES module without a framework: <script type="module" src="…/js/live.js">.
 *
 * == What a page writes ==
 *
 * 1. What it wants to hear, once, on <body> (or any element; the first one found counts):
 *      data-live-subscribe='[{"subscribe": "team", "team": "nlp"}, {"subscribe": "pool", "pool": "train"}]'
 *      data-live-seq="4711"       the newest Event.seq when the page was rendered: nothing after it is missed
 *                                 (read it before the page's other queries; live.selectors.position() does)
 *      data-live-url="/ws/"       optional, this is the default
 *      data-live-events-url="/api/v1/events"   optional, this is the default; polled where sockets stay impossible
 *    With it the connection opens by itself. Subscriptions: team (its jobs and those of all teams below), pool (devices,
 *    nodes, totals), job (one job, with its cost and use every few seconds).
 *
 * 2. Elements that show a field of a job:  data-live-job="12" data-live-field="state"
 *      fields: state, hold, ending, reason (first reason's message), reason_code, name, pool, started_at, ended_at,
 *      submitted_at, estimated_start, exit_code, preemptions, cost, used (per cent of what it holds), memory_mib.
 *      The text becomes the value; the raw value is also put into data-value, so CSS can colour [data-value="running"].
 *      A <time> gets its datetime attribute and a local text. Unknown (null) is shown as "–".
 *      Texts for values come from <script type="application/json" id="live-labels">{"state": {"running": "Running"}}.
 *    An element with data-live-job and data-live-class="state-" gets the class state-<state>, in place of its old one.
 *
 * 3. Elements that stand for a device:  data-live-device="907"
 *      style --allocated and --used become 0…1 (--used is absent while unknown), data-health, data-allocated (milli),
 *      data-used (milli, or "unknown"), data-teams (slugs of the teams that the viewer may see, space separated).
 *    Elements that stand for a node:  data-live-node="31"  →  data-state.
 *    Totals of a pool:  data-live-pool="train" data-live-field="allocated|capacity|free|used|devices|failed" (in GPUs).
 *    For very large maps leave the attributes off and listen to live:device instead.
 *
 * 4. Parts that htmx fetches again when something of a kind happens (at most once per 500 ms each):
 *      <div hx-get="…" hx-trigger="live:refresh" data-live-refresh="job.state job.reasons">
 *      "job.*" matches every kind that begins so; "*" every kind. With data-live-job="12" on the same element only that
 *      job's events count; with data-live-pool="train" only that pool's. Kinds are those of the event log
 *      (job.submitted job.state job.reasons job.held job.released job.priority job.stopping job.releasing job.grew
 *       quota.set quota.removed quota.expired team.created team.moved member.set member.removed notice
 *       fleet.changed nodes.added node.state device.health pool.changed engine.state) and "reading" for measurements.
 *
 * 5. The state of the connection:  [data-live-status] gets data-live-status="connecting|live|reconnecting|polling|
 *    signed-out|refused"; inside it, [data-live-when="reconnecting polling"] is shown only in these states (hidden
 *    attribute). Give the element role="status" so that it is read out.
 *
 * == Events on document (detail as given) ==
 *
 *    live:status   {status}
 *    live:frame    the frame as it came (see platform/live/protocol.py)
 *    live:event    {seq, at, kinds, team, pool?, job?, notice?, member?}   each entry of frame.events
 *    live:job      {id, state, …, kinds, seq}                  each job in it
 *    live:device   {id, allocated, memory, health, used, usedMemory, slices: [{job, team, compute, memory}]}
 *    live:node     {id, state}
 *    live:pool     {name, capacity, allocated, used, devices, failed}       milli-GPU
 *    live:reading  {job, allocated, used, memory, cost}                     milli, milli or null, MiB or null, text or null
 *    live:notice   {code, job, numbers, team, seq}
 *    live:resync   {}   too much was missed: every [data-live-refresh] was asked to refresh; redraw what is drawn by hand
 *    live:ended    {subscription, why}   a subscription that is no longer allowed, or never was
 *
 * == Or by hand ==
 *
 *    import {connect} from ".../live.js";
 *    const live = connect({after: 4711, subscriptions: [...], onFrame(frame) {…}, onStatus(status) {…},
 *                          onEnded(subscription, why) {…}, url, eventsUrl});
 *    live.subscribe({...}); live.unsubscribe({...}); live.close(); live.seq; live.status
 *    import {bind} from ".../live.js";   bind(frame) applies 2–4 and dispatches the events above for any frame.
 */

const FRAME_REFRESH_MS = 500;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15000;
const POLL_MS = 5000;
const HIDDEN_MS = 60000; // a tab that nobody looks at for so long gives its socket back
const SILENCE_MS = 45000; // three signs of life that did not come
const FAILURES_UNTIL_POLLING = 3;
const UNKNOWN = "–";

/** Opens a connection and keeps it: returns at once, reconnects by itself, resumes where it was. */
export function connect({
  after = null, subscriptions = [], onFrame = () => {}, onStatus = () => {}, onEnded = () => {},
  url = "/ws/", eventsUrl = "/api/v1/events",
} = {}) {
  return new Connection({ after, subscriptions, onFrame, onStatus, onEnded, url, eventsUrl });
}

class Connection {
  constructor(options) {
    this.options = options;
    this.wanted = new Map(options.subscriptions.map((each) => [nameOf(each), each]));
    this.seq = options.after;
    this.status = "";
    this.failures = 0;
    this.stopped = false;
    this.socket = null;
    this.timers = {};
    this.onVisibility = () => this.visibilityChanged();
    this.onOnline = () => this.retryNow();
    document.addEventListener("visibilitychange", this.onVisibility);
    window.addEventListener("online", this.onOnline);
    this.tell("connecting");
    this.open();
  }

  subscribe(subscription) {
    this.wanted.set(nameOf(subscription), subscription);
    if (this.isOpen()) this.ask(subscription, subscription.after ?? null);
  }

  unsubscribe(subscription) {
    const known = this.wanted.get(nameOf(subscription));
    this.wanted.delete(nameOf(subscription));
    if (known && this.isOpen()) {
      const { subscribe, after, snapshot, ...words } = known;
      this.socket.send(JSON.stringify({ ...words, unsubscribe: subscribe }));
    }
  }

  close() {
    this.stopped = true;
    document.removeEventListener("visibilitychange", this.onVisibility);
    window.removeEventListener("online", this.onOnline);
    for (const timer of Object.values(this.timers)) clearTimeout(timer);
    this.drop();
  }

  isOpen() { return this.socket !== null && this.socket.readyState === WebSocket.OPEN; }

  tell(status) {
    if (status === this.status) return;
    this.status = status;
    this.options.onStatus(status);
  }

  open() {
    if (this.stopped || this.socket !== null) return;
    let socket;
    try {
      socket = new WebSocket(absolute(this.options.url));
    } catch {
      this.failed();
      return;
    }
    this.socket = socket;
    socket.onopen = () => {
      this.listenForSilence();
      for (const each of this.wanted.values()) this.ask(each, this.seq ?? each.after ?? null);
      if (this.wanted.size === 0) this.arrived();
    };
    socket.onmessage = (message) => { if (socket === this.socket) this.receive(JSON.parse(message.data)); };
    socket.onclose = (event) => { if (socket === this.socket) this.closed(event.code); };
  }

  ask(subscription, after) {
    const { after: ignored, ...words } = subscription;
    const body = { ...words, ref: nameOf(subscription) };
    if (after !== null) body.after = after;
    this.socket.send(JSON.stringify(body));
  }

  receive(body) {
    this.listenForSilence();
    if ("subscribed" in body) {
      this.seq ??= body.seq;
      this.arrived();
    } else if ("ended" in body || "error" in body) {
      const name = body.ref ?? nameOf(body.ended ?? {});
      const subscription = this.wanted.get(name);
      if (subscription !== undefined) {
        this.wanted.delete(name);
        this.options.onEnded(subscription, body.why ?? body.error.code);
      }
    } else if ("seq" in body) {
      this.seq = body.seq;
      this.options.onFrame(body);
    }
  }

  arrived() {
    this.failures = 0;
    clearTimeout(this.timers.poll);
    this.tell("live");
  }

  listenForSilence() {
    clearTimeout(this.timers.silence);
    this.timers.silence = setTimeout(() => { this.drop(); this.failed(); }, SILENCE_MS);
  }

  /** The socket is gone, without a word about it. */
  drop() {
    clearTimeout(this.timers.silence);
    const socket = this.socket;
    this.socket = null;
    if (socket !== null) socket.close();
  }

  closed(code) {
    clearTimeout(this.timers.silence);
    this.socket = null;
    if (code === 4401 || code === 4403) {
      this.tell(code === 4401 ? "signed-out" : "refused");
      this.close();
    } else if (!this.asleep) {
      this.failed();
    }
  }

  failed() {
    if (this.stopped) return;
    this.failures += 1;
    if (this.failures >= FAILURES_UNTIL_POLLING && this.options.eventsUrl) {
      if (this.status !== "polling") {
        this.tell("polling");
        this.poll();
      }
    } else {
      this.tell("reconnecting");
    }
    const longest = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** (this.failures - 1));
    // Jitter: a server that restarts must not meet all its readers at the same moment.
    clearTimeout(this.timers.retry);
    this.timers.retry = setTimeout(() => this.open(), longest * (0.5 + Math.random() / 2));
  }

  retryNow() {
    if (this.stopped || this.socket !== null) return;
    clearTimeout(this.timers.retry);
    this.open();
  }

  visibilityChanged() {
    if (document.visibilityState === "hidden") {
      this.timers.hidden = setTimeout(() => { this.asleep = true; this.drop(); clearTimeout(this.timers.retry); }, HIDDEN_MS);
    } else {
      clearTimeout(this.timers.hidden);
      if (this.asleep) this.tell("reconnecting");
      this.asleep = false;
      this.retryNow();
    }
  }

  /** Where sockets stay impossible the event log is read every few seconds; the socket is still tried beside it. */
  async poll() {
    if (this.stopped || this.status !== "polling") return;
    try {
      if (document.visibilityState === "visible") await this.readEvents();
    } catch {
      // The server is away as well: the next look may find it.
    }
    if (this.status === "polling") this.timers.poll = setTimeout(() => this.poll(), POLL_MS);
  }

  async readEvents() {
    const url = new URL(this.options.eventsUrl, location.href);
    url.searchParams.set("after", String(this.seq ?? 0));
    const response = await fetch(url, { headers: { Accept: "application/json" }, credentials: "same-origin" });
    if (response.status === 401 || response.status === 403) {
      this.tell("signed-out");
      this.close();
      return;
    }
    if (!response.ok) return;
    const body = await response.json();
    const rows = Array.isArray(body) ? body : body.results ?? [];
    const events = rows.map(asFrameEvent).sort((one, other) => one.seq - other.seq);
    if (events.length === 0) return;
    const missedSome = this.seq === null;
    this.seq = Math.max(this.seq ?? 0, events[events.length - 1].seq);
    this.options.onFrame({ seq: this.seq, events, ...(missedSome ? { resync: true } : {}) });
  }
}

function asFrameEvent(row) {
  const id = typeof row.job === "object" && row.job !== null ? row.job.id : row.job ?? row.job_id ?? null;
  const event = { seq: row.seq, at: row.at, kinds: [row.kind], team: row.team ?? undefined, pool: row.pool ?? undefined };
  if (row.kind === "notice") event.notice = { ...row.data, job: id };
  else if (id !== null) event.job = { id, ...(row.data?.state ? { state: row.data.state } : {}) };
  return event;
}

function nameOf(subscription) {
  const subject = subscription.subscribe;
  return `${subject} ${subject === "job" ? subscription.id : subscription[subject]}`;
}

function absolute(path) {
  const url = new URL(path, location.href);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return url.href;
}

/* == What a frame does to a page ==================================================================================== */

/** Applies a frame to the document and dispatches its events. */
export function bind(frame) {
  for (const event of frame.events ?? []) {
    dispatch("live:event", event);
    if (event.job) {
      showJob(event.job);
      dispatch("live:job", { ...event.job, kinds: event.kinds, seq: event.seq, team: event.team });
    }
    if (event.notice) dispatch("live:notice", { ...event.notice, team: event.team, seq: event.seq });
  }
  for (const device of frame.devices ?? []) bindDevice(device);
  for (const [id, state] of frame.nodes ?? []) {
    for (const element of all(`[data-live-node="${id}"]`)) element.dataset.state = state;
    dispatch("live:node", { id, state });
  }
  for (const [name, totals] of Object.entries(frame.pools ?? {})) bindPool(name, totals);
  for (const reading of frame.readings ?? []) bindReading(reading);
  refreshParts(frame);
  if (frame.resync) dispatch("live:resync", {});
  dispatch("live:frame", frame);
}

function dispatch(name, detail) {
  document.dispatchEvent(new CustomEvent(name, { detail }));
}

function all(selector) {
  return document.querySelectorAll(selector);
}

const JOB_FIELDS = {
  reason: (job) => job.reasons?.[0]?.message ?? null,
  reason_code: (job) => job.reasons?.[0]?.code ?? null,
};

function showJob(job) {
  for (const element of all(`[data-live-job="${job.id}"]`)) {
    const field = element.dataset.liveField;
    if (field !== undefined) {
      const derived = JOB_FIELDS[field];
      if (derived !== undefined && job.reasons !== undefined) show(element, field, derived(job));
      else if (field in job) show(element, field, job[field]);
    }
    const prefix = element.dataset.liveClass;
    if (prefix && job.state) {
      element.classList.remove(...[...element.classList].filter((name) => name.startsWith(prefix)));
      element.classList.add(prefix + job.state);
    }
  }
}

function show(element, field, value) {
  const missing = value === null || value === undefined || value === "";
  element.dataset.value = missing ? "" : String(value);
  if (element instanceof HTMLTimeElement) {
    element.dateTime = missing ? "" : value;
    element.textContent = missing ? UNKNOWN : new Date(value).toLocaleString(document.documentElement.lang || undefined, timeZone());
  } else if (element instanceof HTMLProgressElement || element instanceof HTMLMeterElement) {
    element.value = missing ? 0 : Number(value);
  } else {
    element.textContent = missing ? UNKNOWN : labels()[field]?.[value] ?? String(value);
  }
}

function timeZone() {
  const zone = document.body.dataset.timeZone;
  return zone ? { timeZone: zone } : {};
}

function labels() {
  const source = document.getElementById("live-labels");
  return source === null ? {} : JSON.parse(source.textContent);
}

function bindDevice([id, allocated, memory, health, used, usedMemory, slices]) {
  for (const element of all(`[data-live-device="${id}"]`)) {
    element.style.setProperty("--allocated", String(allocated / 1000));
    if (used === null) element.style.removeProperty("--used");
    else element.style.setProperty("--used", String(used / 1000));
    element.dataset.health = health;
    element.dataset.allocated = String(allocated);
    element.dataset.used = used === null ? "unknown" : String(used);
    element.dataset.teams = [...new Set(slices.map((slice) => slice[1]))].join(" ");
  }
  const parts = slices.map(([job, team, compute, mib]) => ({ job, team, compute, memory: mib }));
  dispatch("live:device", { id, allocated, memory, health, used, usedMemory, slices: parts });
}

function bindPool(name, totals) {
  const [capacity, allocated, used] = [totals.capacity_milli, totals.allocated_milli, totals.used_milli];
  const values = {
    capacity: gpus(capacity), allocated: gpus(allocated), used: used === null ? null : gpus(used),
    free: gpus(Math.max(0, capacity - allocated)), devices: totals.devices, failed: totals.failed,
  };
  for (const element of all(`[data-live-pool="${CSS.escape(name)}"][data-live-field]`)) {
    const field = element.dataset.liveField;
    if (field in values) show(element, field, values[field]);
  }
  dispatch("live:pool", { name, capacity, allocated, used, devices: totals.devices, failed: totals.failed });
}

/** Milli → the text that people read: 900 is 0.9, exactly. */
function gpus(milli) {
  const whole = Math.trunc(milli / 1000);
  const rest = String(Math.abs(milli % 1000)).padStart(3, "0").replace(/0+$/, "");
  return rest === "" ? String(whole) : `${whole}.${rest}`;
}

function bindReading([job, allocated, used, memory, cost]) {
  const percent = used === null || allocated === 0 ? null : `${Math.round((100 * used) / allocated)} %`;
  const values = { used: percent, memory_mib: memory };
  if (cost !== null) values.cost = cost;
  for (const element of all(`[data-live-job="${job}"][data-live-field]`)) {
    const field = element.dataset.liveField;
    if (field in values) show(element, field, values[field]);
  }
  dispatch("live:reading", { job, allocated, used, memory, cost });
}

/* == Parts that are fetched again == */

// By id where there is one: a part that was swapped for its successor is still the same part.
const refreshed = new Map();

function refreshParts(frame) {
  const happened = (frame.events ?? []).map((event) => ({
    kinds: event.kinds, job: event.job?.id ?? event.notice?.job, pool: event.pool ?? event.job?.pool,
  }));
  for (const [job] of frame.readings ?? []) happened.push({ kinds: ["reading"], job, pool: undefined });
  if (happened.length === 0 && !frame.resync) return;
  for (const element of all("[data-live-refresh]")) {
    if (frame.resync || happened.some((each) => concerns(element, each))) refreshSoon(element);
  }
}

function concerns(element, { kinds, job, pool }) {
  const { liveJob, livePool, liveRefresh } = element.dataset;
  if (liveJob !== undefined && liveJob !== String(job)) return false;
  if (livePool !== undefined && livePool !== pool) return false;
  return liveRefresh.split(/\s+/).some((pattern) => kinds.some((kind) => matches(pattern, kind)));
}

function matches(pattern, kind) {
  return pattern.endsWith("*") ? kind.startsWith(pattern.slice(0, -1)) : pattern === kind;
}

function refreshSoon(element) {
  const key = element.id || element;
  const state = refreshed.get(key) ?? { last: -Infinity, waiting: false };
  refreshed.set(key, state);
  if (state.waiting) return;
  const wait = Math.max(0, state.last + FRAME_REFRESH_MS - performance.now());
  state.waiting = true;
  setTimeout(() => {
    state.waiting = false;
    state.last = performance.now();
    const current = element.id ? document.getElementById(element.id) : element;
    // Not bubbling: a part inside a part is fetched for itself.
    if (current !== null && current.isConnected) current.dispatchEvent(new CustomEvent("live:refresh"));
    else refreshed.delete(key);
  }, wait);
}

/* == The page says what it wants == */

function showStatus(status) {
  for (const element of all("[data-live-status]")) {
    element.dataset.liveStatus = status;
    for (const part of element.querySelectorAll("[data-live-when]")) {
      part.hidden = !part.dataset.liveWhen.split(/\s+/).includes(status);
    }
  }
  dispatch("live:status", { status });
}

function start() {
  const source = document.querySelector("[data-live-subscribe]");
  if (source === null) return null;
  const { liveSubscribe, liveSeq, liveUrl, liveEventsUrl } = source.dataset;
  return connect({
    after: liveSeq === undefined || liveSeq === "" ? null : Number(liveSeq),
    subscriptions: JSON.parse(liveSubscribe || "[]"),
    onFrame: bind,
    onStatus: showStatus,
    onEnded: (subscription, why) => dispatch("live:ended", { subscription, why }),
    ...(liveUrl ? { url: liveUrl } : {}),
    ...(liveEventsUrl ? { eventsUrl: liveEventsUrl } : {}),
  });
}

/** The page's own connection, where it declared one. */
export const live = start();
