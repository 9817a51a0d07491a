"""The language of the live socket: JSON texts over a WebSocket at ``/ws/``.

Who may connect: a signed-in browser (session cookie, from an allowed origin), or a script with
``Authorization: Bearer TOKEN`` (scope ``read``). Nothing is ever changed over the socket: it has no commands, only
subscriptions.

From the client
---------------
``{"subscribe": "team", "team": "nlp", "after": 4711}``   jobs, quotas and notices of the team and of all teams below it
``{"subscribe": "pool", "pool": "train", "after": 4711}`` devices, nodes and totals of a pool; ``"snapshot": true``
    sends all of its devices and nodes first
``{"subscribe": "job", "id": 12, "after": 4711}``         one job, with its cost and its use every few seconds
``{"unsubscribe": …}``  with the same words; ``{"ping": anything}`` is answered by ``{"pong": anything}``

``after`` is the last sequence number that the client knows: what it missed since is sent from the event log (the
latest state of each thing, not every step). Left out: from now on. Any subscription may carry a ``ref`` (text or
number), which comes back with the answer.

From the server
---------------
``{"subscribed": {…the subscription…}, "seq": n}``         it holds; what happened up to n is on its way or was known
``{"unsubscribed": {…}}``
``{"ended": {…}, "why": "not_visible"}``                   it held, and is no longer allowed
``{"error": {"code", "message", "field"?, "allowed"?}}``   the message was not understood or not allowed; the socket
    lives on. Codes: ``not_json``, ``invalid``, ``unknown``, ``not_found``, ``too_many``, ``too_large`` (which closes).
A frame, at most four a second:

::

    {"seq": 4711,
     "events": [{"seq": 4709, "at": "2026-03-02T09:00:00.123Z", "kinds": ["job.state"], "team": "nlp",
                 "job": {"id": 12, "version": 3, "name": "train", "state": "running", "pool": "train", "user": "bob",
                         "hold": "", "ending": "", "reasons": [{"code", "message"}], "submitted_at", "started_at",
                         "ended_at", "estimated_start", "exit_code", "preemptions", "tasks", "gpus_milli"}},
                {"seq": 4710, "at": …, "kinds": ["quota.set"], "team": "nlp", "pool": "train"},
                {"seq": 4711, "at": …, "kinds": ["notice"], "team": "nlp", "notice": {"code", "job"?, "numbers"}}],
     "devices": [[id, compute_allocated_milli, memory_allocated_mib, "ok" | "failed", used_milli | null,
                  used_memory_mib | null, [[job_id, "team", compute_milli, memory_mib], …]], …],
     "nodes": [[id, "ready" | "cordoned" | "draining" | "down"], …],
     "pools": {"train": {"capacity_milli", "allocated_milli", "used_milli" | null, "devices", "failed"}},
     "readings": [[job_id, allocated_milli, used_milli | null, memory_mib | null, "cost" | null], …],
     "resync": true}

Keys without content are left out; ``{"seq": n}`` alone is a sign of life (every 15 s). ``seq`` is the place to resume
from. All that happened to one job, device, node or pool since the last frame is one entry: its latest state, with the
kinds of events that led there. ``resync``: too much was missed to tell; read the page anew.

What nobody hears: a job, a name, a user, a slice or a use of a team that it may not see. Of a pool everyone who is
signed in hears the devices' fill and health and the nodes' states; slices only of teams that it may see.

Close codes: 4401 not (or no longer) signed in; 4403 origin or nothing left that may be heard; 4408 too slow to follow;
1009 a message above 8 KiB; 1012 the server restarts.
"""
