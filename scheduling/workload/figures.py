"""Figures measured on public traces, on which the demo's workload is built. Numbers only; no trace is shipped.

Measured by ``scheduling.workload.measure.measure``, exactly and again by a test wherever the traces are at hand
(``ALLOTMENT_TRACES`` names their folder). Quantiles are nearest-rank at QUANTILES. Sources:

philly    Microsoft Philly, github.com/msr-fiddle/philly-traces @ 29a1b87 (CC-BY-4.0); Jeon et al., "Analysis of
          Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", USENIX ATC 2019. 15,264 jobs of 15
          virtual clusters, at most the first 2,000 of each, recovered from github.com/stanford-futuredata/gavel
          @ ace90a3 (MIT), scheduler/traces/msr. Jobs under 1,200 s are not in it: short training is missing.
chronus   The same cluster resampled to 30,940 jobs over 14 days: github.com/S-Lab-System-Group/ChronusArtifact
          @ bc7e15f (MIT); Gao et al., "Chronus", ACM SoCC 2021. Its team labels are random.
alibaba   Alibaba cluster-trace-gpu-v2023, github.com/alibaba/clusterdata @ 7a6c496 (for research and study); Weng et
          al., "Beware of Fragmentation", USENIX ATC 2023. 8,152 pods, 1,523 nodes; per mille of constrained pods
          from its gpuspec33 list.
helios    Summary table of SenseTime Helios, github.com/S-Lab-System-Group/HeliosArtifact @ bdaae10 (MIT); Hu et al.,
          "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters", SC 2021.
          3,362,981 jobs of four clusters.
"""

from __future__ import annotations

QUANTILES = (0, 10, 50, 100, 250, 500, 750, 900, 950, 990, 1000)  # per mille

# Jobs by number of GPUs.
PHILLY_GANG_SIZES = {1: 10480, 2: 463, 4: 2044, 7: 2, 8: 1916, 12: 6, 16: 255, 20: 1, 24: 5, 32: 91, 64: 1}
CHRONUS_GANG_SIZES = {0: 184, 1: 28361, 2: 205, 4: 1173, 8: 876, 12: 2, 16: 124, 20: 1, 32: 14}

# Seconds that jobs ran, by number of GPUs.
PHILLY_DURATIONS = {
    "1": (1200, 1227, 1359, 1561, 2478, 9013, 43531, 178569, 451714, 2131629, 5196151),
    "2-4": (1201, 1380, 2437, 4624, 15317, 68721, 168674, 293626, 511900, 1544623, 5186309),
    "5-8": (1201, 1300, 2030, 3082, 11126, 70712, 220831, 500080, 800640, 1956536, 4628226),
    "9+": (1255, 1264, 1663, 2999, 9872, 33201, 102641, 350667, 574287, 728533, 1428142),
}
CHRONUS_DURATIONS = {
    "1": (1200, 1200, 1260, 1380, 1920, 3420, 8340, 19860, 52260, 148140, 258900),
    "2-4": (1200, 1200, 1440, 2100, 10140, 45840, 98160, 177960, 204120, 237180, 258960),
    "5-8": (1200, 1260, 1740, 2340, 7920, 35340, 132120, 203640, 232140, 252120, 259020),
    "9+": (1380, 1380, 2160, 4080, 14040, 41760, 99240, 160680, 197100, 209640, 209640),
}

# Jobs submitted in each hour of the day, counted from the trace's start, whose time of day is not known. In the Philly
# rows each virtual cluster counts from its own first job, so their days are out of step and this curve is flattened.
PHILLY_HOURS = (
    *(678, 1239, 559, 720, 346, 394, 543, 813, 1027, 572, 277, 599),
    *(629, 416, 400, 389, 368, 512, 548, 869, 868, 919, 926, 653),
)
CHRONUS_HOURS = (
    *(3390, 1491, 1422, 1090, 813, 1425, 995, 702, 430, 2028, 1103, 495),
    *(295, 1340, 684, 2393, 1279, 1149, 807, 1708, 694, 1251, 1849, 2107),
)
ALIBABA_HOURS = (
    *(515, 456, 362, 436, 426, 318, 291, 331, 242, 146, 222, 204),
    *(152, 149, 137, 271, 301, 425, 550, 466, 352, 430, 432, 538),
)

# Parts of all GPU-seconds by virtual cluster, per mille rounded down, largest first: how unlike teams are.
PHILLY_TEAM_WORK = (203, 196, 153, 100, 84, 65, 60, 48, 42, 29, 13, 0, 0, 0, 0)

# Pods by class: CPU only, part of one GPU, one whole GPU, several GPUs.
ALIBABA_CLASSES = {"cpu": 1088, "slice": 3078, "one": 3911, "several": 75}

# Pods that ask for part of one GPU by milli-GPU. The trace has steps of 10; each was rounded up to the next multiple of
# 50 (5 %), so that nobody gets less than was asked for: the 1,078 pods of 810 milli, the most frequent, count at 850.
ALIBABA_FRACTIONS = {
    50: 7,
    150: 25,
    200: 74,
    250: 202,
    300: 5,
    350: 341,
    400: 47,
    450: 2,
    500: 897,
    550: 72,
    600: 75,
    650: 253,
    850: 1078,
}

# Seconds from being scheduled to deletion; the 897 pods that never were scheduled are left out. The largest values are
# pods that were there all the trace through.
ALIBABA_DURATIONS = {
    "cpu": (33, 59, 94, 141, 151, 492, 1947, 13219, 19837, 28368, 10143284),
    "slice": (4, 14, 35, 55, 144, 539, 1858, 9235, 20410, 77910, 12475899),
    "one": (5, 33, 55, 80, 208, 756, 2460, 6030, 13278, 243803, 12537496),
    "several": (22, 22, 36, 40, 171, 573, 6710, 68494, 209987, 1332357, 1332357),
}

# What a pod asks for beside GPUs: per pod for cpu and slice, per GPU for one and several. Milli-cores, then MiB.
ALIBABA_CPU = {
    "cpu": (8000, 8000, 8000, 8000, 12500, 12500, 32000, 32000, 32000, 32000, 32000),
    "slice": (1000, 3152, 3152, 3152, 3152, 4000, 8000, 11908, 11908, 11908, 12000),
    "one": (1000, 3152, 3152, 3152, 9810, 11400, 12000, 16000, 18708, 24200, 24200),
    "several": (3000, 3000, 7000, 8000, 8025, 8100, 11000, 15025, 15050, 15100, 15100),
}
ALIBABA_MEMORY = {
    "cpu": (8192, 15625, 30517, 30517, 49152, 51200, 57344, 57344, 57344, 62500, 65536),
    "slice": (2048, 5600, 5600, 5600, 5600, 15258, 30517, 47104, 47104, 47104, 47104),
    "one": (0, 5600, 5600, 5600, 24576, 48128, 49152, 64512, 77824, 93184, 125952),
    "several": (21504, 21504, 32768, 32768, 32896, 33024, 40960, 80128, 80384, 92160, 92160),
}

ALIBABA_CONSTRAINED = 338  # per mille of GPU pods that name the models they can use
ALIBABA_PHASES = {"Failed": 1870, "Pending": 897, "Running": 5193, "Succeeded": 192}

# Nodes by model and devices: how many, milli-cores per device, MiB of host memory per device (CPU nodes: per node).
ALIBABA_NODES = {
    "A10 x 1": (2, 128000, 1048576),
    "CPU": (310, 59664, 349032),
    "G2 x 8": (549, 12000, 49152),
    "G3 x 8": (39, 16000, 98304),
    "P100 x 1": (3, 8000, 61440),
    "P100 x 2": (131, 11969, 72664),
    "T4 x 2": (387, 52000, 262144),
    "T4 x 4": (17, 24000, 98304),
    "V100M16 x 1": (19, 8000, 32768),
    "V100M16 x 4": (28, 8000, 32768),
    "V100M16 x 8": (8, 8281, 34048),
    "V100M32 x 4": (9, 12000, 94208),
    "V100M32 x 8": (21, 12000, 98304),
}

# Per mille of jobs that completed, were cancelled, failed.
HELIOS_OUTCOMES = {"all": (775, 119, 105), "cpu": (909, 30, 61), "gpu": (624, 221, 155)}

MEASURED: dict[str, object] = {
    "philly_gang_sizes": PHILLY_GANG_SIZES,
    "philly_durations": PHILLY_DURATIONS,
    "philly_hours": PHILLY_HOURS,
    "philly_team_work": PHILLY_TEAM_WORK,
    "chronus_gang_sizes": CHRONUS_GANG_SIZES,
    "chronus_durations": CHRONUS_DURATIONS,
    "chronus_hours": CHRONUS_HOURS,
    "alibaba_classes": ALIBABA_CLASSES,
    "alibaba_fractions": ALIBABA_FRACTIONS,
    "alibaba_durations": ALIBABA_DURATIONS,
    "alibaba_hours": ALIBABA_HOURS,
    "alibaba_cpu": ALIBABA_CPU,
    "alibaba_memory": ALIBABA_MEMORY,
    "alibaba_constrained": ALIBABA_CONSTRAINED,
    "alibaba_phases": ALIBABA_PHASES,
    "alibaba_nodes": ALIBABA_NODES,
    "helios_outcomes": HELIOS_OUTCOMES,
}
