"""Watches over one task, as a process of its own that outlives the server. Needs the standard library alone.

``python -I -S …/supervisor FOLDER`` starts it: without site-packages, so that it is small and quick to start. It alone
starts the task's command, enforces its time limit, ends it with grace, keeps its output, and writes down how it ended;
so all of that also happens while no server is there.

The folder is all that it shares with an engine:

================  ==================================================================================
``order.json``    written by an engine before anything starts: what to run, and how
``claim``         locked by the one supervisor of this folder for as long as it lives
``begun.json``    that supervisor is about to start the command: who it is
``started.json``  the command runs: its pid, the pid's start time, the boot that both belong to
``stop.json``     written by an engine that wants the end; SIGTERM to the supervisor says "look"
``ended.json``    nothing of the task is left: when, exit code, reason. The last thing written
``log``           standard output and error of everything in the task
``errors``        standard error of supervisors: empty unless one of them failed
``work/``         the task's working folder and HOME
================  ==================================================================================

At most once: a supervisor that cannot have the claim, or finds ``begun.json``, starts nothing. Times in records are
microseconds since 1970, UTC.
"""
