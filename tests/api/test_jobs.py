"""Jobs through REST: the fixed shape, what is refused, and what a refusal leaves."""

HELLO = {"team": "nlp", "pool": "train", "name": "hello", "gpus": 0.5, "command": ["python3", "-c", "print('hello')"]}


def test_the_shape_of_a_submission(api, world):
    job = api["bob"].post("/jobs", HELLO)
    assert job["state"] == "pending"
    assert job["cost"] == "0.000000"
    assert job["reasons"][0]["code"] == "queued"
    assert (job["gpus"], job["requested"], job["allocated"], job["unit"]) == (0.5, 0.5, 0, "gpu")
    assert job["submitted_at"].endswith("Z")
    world.now = __import__("django").utils.timezone.now()
    world.settle()
    seen = api["bob"].get(f"/jobs/{job['id']}")
    assert (seen["state"], seen["allocated"], seen["tasks_running"]) == ("running", 0.5, 1)
