"""The demo's organisation: six teams in two departments, how much each works on what, and what it is entitled to.

How unlike the teams are is measured: their parts of the offered work are those of the six busiest virtual clusters of
Philly (``figures.PHILLY_TEAM_WORK``). Names, inclinations and quotas are made up, so that there is something to see:
two teams ask for more than they are guaranteed, one for less, one soon meets its limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduling.workload.figures import PHILLY_TEAM_WORK


@dataclass(frozen=True, slots=True)
class Claim:
    """A quota in per mille of a pool's capacity. ``limit`` None: none."""

    guaranteed: int
    limit: int | None = None
    weight: int = 1


@dataclass(frozen=True, slots=True)
class TeamProfile:
    """How a team works. ``appetite``: its part of the offered work, relative to the other teams'.

    ``inclination`` multiplies how often a class of job (``cpu``, ``slice``, ``whole``) occurs; 1 where it has no entry.
    ``stems`` are beginnings of job names by kind (``batch``, ``interactive``, ``service``) and for ``cpu``.
    """

    name: str
    appetite: float = 1
    inclination: Mapping[str, float] = field(default_factory=dict)
    stems: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    title: str = ""
    department: str = ""
    claim: Claim = Claim(0)


@dataclass(frozen=True, slots=True)
class Department:
    """A team of teams. Its guarantee is at least the sum of theirs."""

    name: str
    title: str
    claim: Claim


DEMO_DEPARTMENTS = (
    Department("research", "Research", Claim(500)),
    Department("products", "Products", Claim(400, limit=600)),
)

DEMO_TEAMS = (
    TeamProfile(
        name="nlp",
        title="Language",
        department="research",
        appetite=PHILLY_TEAM_WORK[0],
        inclination={"whole": 1.3, "slice": 0.8},
        stems={
            "batch": ("bert-finetune", "llama-pretrain", "t5-distill", "reward-model", "rlhf-rollout"),
            "interactive": ("notebook", "prompt-lab"),
            "service": ("chat-serving", "embedder"),
            "cpu": ("tokenize-corpus", "dedup-shards"),
        },
        claim=Claim(220, weight=2),
    ),
    TeamProfile(
        name="vision",
        title="Vision",
        department="research",
        appetite=PHILLY_TEAM_WORK[1],
        inclination={"whole": 1.2},
        stems={
            "batch": ("vit-pretrain", "resnet-sweep", "diffusion-train", "detr-finetune", "sam-distill"),
            "interactive": ("notebook", "label-studio"),
            "service": ("ocr-serving", "image-search"),
            "cpu": ("decode-video", "resize-images"),
        },
        claim=Claim(200),
    ),
    TeamProfile(
        name="speech",
        title="Speech",
        department="research",
        appetite=PHILLY_TEAM_WORK[4],
        inclination={"slice": 1.3},
        stems={
            "batch": ("whisper-finetune", "tts-train", "wav2vec-pretrain"),
            "interactive": ("notebook", "listening-test"),
            "service": ("asr-serving", "tts-serving"),
            "cpu": ("resample-audio", "align-transcripts"),
        },
        claim=Claim(60),
    ),
    TeamProfile(
        name="search",
        title="Search",
        department="products",
        appetite=PHILLY_TEAM_WORK[3],
        inclination={"slice": 1.4, "cpu": 1.5},
        stems={
            "batch": ("ranker-train", "query-encoder", "reranker-distill"),
            "interactive": ("notebook", "relevance-lab"),
            "service": ("ranker-serving", "autocomplete"),
            "cpu": ("build-index", "log-replay"),
        },
        claim=Claim(120),
    ),
    TeamProfile(
        name="recsys",
        title="Recommendations",
        department="products",
        appetite=PHILLY_TEAM_WORK[2],
        inclination={"slice": 1.2, "cpu": 1.3},
        stems={
            "batch": ("two-tower", "dlrm-train", "ctr-retrain", "bandit-eval"),
            "interactive": ("notebook", "feature-lab"),
            "service": ("feed-serving", "ads-scorer"),
            "cpu": ("feature-join", "sample-negatives"),
        },
        claim=Claim(220),
    ),
    TeamProfile(
        name="robotics",
        title="Robotics",
        department="products",
        appetite=PHILLY_TEAM_WORK[5],
        inclination={"whole": 0.8, "cpu": 2.0},
        stems={
            "batch": ("policy-train", "sim2real", "world-model"),
            "interactive": ("notebook", "sim-viewer"),
            "service": ("planner-serving", "grasp-serving"),
            "cpu": ("physics-rollouts", "scene-render"),
        },
        claim=Claim(40, limit=80),
    ),
)
