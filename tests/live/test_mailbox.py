"""What waits for a socket: the latest of each thing, the kinds that led there, and never more than so many."""

from __future__ import annotations

import json

from live.access import Access
from live.mailbox import Item, Mailbox, Press

EVERYONE = Access(1, None)
NLP = Access(2, frozenset({7}))


def job(job_id, seq, state, *, kind="job.state", team_id=7):
    text = f'"at":null,"job":{{"id":{job_id},"state":"{state}"}}'
    return Item(("job", job_id), "events", team_id, text, seq, (kind,))


def device(device_id, *slices):
    return Item(("device", device_id), "devices", None, f"[{device_id},", slices=slices)


def taken(mailbox, access=EVERYONE, seq=99):
    frame = mailbox.take(access, seq, Press())
    return None if frame is None else json.loads(frame)


def test_only_the_last_state_of_a_job_is_sent_with_all_that_happened_to_it():
    mailbox = Mailbox()
    mailbox.put([job(1, 10, "pending", kind="job.submitted"), job(2, 11, "pending", kind="job.submitted")])
    mailbox.put([job(1, 12, "starting")])
    mailbox.put([job(1, 14, "running")])
    assert taken(mailbox) == {
        "seq": 99,
        "events": [
            {"seq": 11, "kinds": ["job.submitted"], "at": None, "job": {"id": 2, "state": "pending"}},
            {"seq": 14, "kinds": ["job.submitted", "job.state"], "at": None, "job": {"id": 1, "state": "running"}},
        ],
    }
    assert taken(mailbox) is None


def test_an_item_that_several_sockets_share_is_not_changed_by_any_of_them():
    shared = job(1, 12, "running")
    one, other = Mailbox(), Mailbox()
    one.put([job(1, 10, "pending", kind="job.submitted"), shared])
    other.put([shared])
    assert taken(one)["events"][0]["kinds"] == ["job.submitted", "job.state"]
    assert taken(other)["events"][0]["kinds"] == ["job.state"]


def test_rights_count_at_the_moment_of_sending():
    mailbox = Mailbox()
    mailbox.put([job(1, 10, "running", team_id=7), job(2, 11, "running", team_id=8)])
    assert [event["job"]["id"] for event in taken(mailbox, NLP)["events"]] == [1]
    mailbox.put([job(2, 12, "running", team_id=8)])
    assert taken(mailbox, NLP) is None


def test_of_a_device_everyone_hears_the_fill_and_only_who_may_the_slices():
    mailbox, stranger = Mailbox(), Mailbox()
    for each in (mailbox, stranger):
        each.put([device(5, (7, '[1,"nlp",500,1]'), (8, '[2,"ads",250,1]')), device(6)])
    assert taken(mailbox, NLP)["devices"] == [[5, [[1, "nlp", 500, 1]]], [6, []]]
    assert taken(stranger, Access(3, frozenset()))["devices"] == [[5, []], [6, []]]


def test_too_much_is_let_go_and_said():
    mailbox = Mailbox(most=6)
    mailbox.put([job(number, number, "pending") for number in range(7)])
    assert len(mailbox) == 0
    mailbox.put([job(9, 9, "pending")])
    assert taken(mailbox) == {"seq": 99, "resync": True}
    mailbox.put([job(9, 10, "running")])
    assert taken(mailbox)["events"][0]["job"]["id"] == 9


def test_much_about_the_same_few_things_is_never_too_much():
    mailbox = Mailbox(most=6)
    for seq in range(1000):
        mailbox.put([job(seq % 3, seq, f"state-{seq}")])
        assert len(mailbox) <= 6
    assert [event["job"]["state"] for event in taken(mailbox)["events"]] == ["state-997", "state-998", "state-999"]


def test_what_many_wait_for_is_printed_once_for_each_that_may_see_the_same():
    press = Press(most=2)
    batch = [job(1, 10, "running", team_id=7), job(2, 11, "running", team_id=8)]

    def frame(access):
        mailbox = Mailbox()
        mailbox.put(batch)
        return mailbox.take(access, 99, press)

    assert frame(EVERYONE) == frame(EVERYONE)
    assert [event["job"]["id"] for event in json.loads(frame(NLP))["events"]] == [1]
    assert [event["job"]["id"] for event in json.loads(frame(EVERYONE))["events"]] == [1, 2]
    assert frame(Access(3, frozenset())) is None
