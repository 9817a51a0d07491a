/* The browser side of the live socket. An ES module without a framework: <script type="module" src="…/js/live.js">.
 *
 * == What a page writes ================================================================================================
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
 * == Events on document (all bubble from there; detail as given) =======================================================
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
 * == Or by hand ========================================================================================================
 *
 *    import {connect} from ".../live.js";
 *    const live = connect({after: 4711, subscriptions: [...], onFrame(frame) {…}, onStatus(status) {…}});
 *    live.subscribe({...}); live.unsubscribe({...}); live.close(); live.seq; live.status
 *    import {bind} from ".../live.js";   bind(frame) applies 2–4 and dispatches the events above for any frame.
 */
