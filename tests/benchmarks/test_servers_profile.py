"""Stacks and flame graphs of the server benchmark's profile; nothing is sampled."""

from collections import Counter
from xml.etree import ElementTree as ET

from benchmarks.servers.flame_graph import draw
from benchmarks.servers.profile import _by_cpu_time, functions, table
from benchmarks.servers.stacks import OURS, by_function, by_owner, is_waiting, owner_of, read_stacks

RAW = """\
process 7:"VLLM::EngineCore";run (/x/site-packages/vllm/v1/engine/core.py:10);schedule (/x/vllm/v1/core/sched/scheduler.py:1) 30
process 7:"VLLM::EngineCore";run (/x/site-packages/vllm/v1/engine/core.py:99);fill (/y/constrained_k2/turn/batch.py:5) 10
process 7:"VLLM::EngineCore";wrap (/y/constrained_k2/vllm_plugin/patches/metrics.py:3);make (/x/vllm/v1/core/sched/s.py:2) 5
<module> (<string>:1) 5
no count
"""


def test_the_innermost_known_code_owns_a_sample() -> None:
    stacks = read_stacks(RAW.splitlines())
    assert by_owner(stacks) == {"vLLM: scheduler": 35, OURS: 10, "Python and libraries": 5}
    assert by_function(stacks) == {"fill (/constrained_k2/turn/batch.py)": 10}
    assert owner_of(("f (/x/site-packages/torch/nn.py)",)) == "Python and libraries"


def test_waiting_threads_take_no_time() -> None:
    loop = "Runner.run (/asyncio/runners.py)"
    waits = ((loop,), (loop, "wait (/threading.py)"), ("sched_yield (/vllm/distributed/utils.py)",))
    busy = (loop, "fill (/constrained_k2/turn/batch.py)")
    assert [is_waiting(stack) for stack in (*waits, busy, ())] == [True, True, True, False, False]
    assert _by_cpu_time(Counter({**dict.fromkeys(waits, 90), busy: 2, ("f (a.py)",): 6}), 40.0) == {
        busy: 10.0, ("f (a.py)",): 30.0
    }  # fmt: skip


def test_files_are_named_from_their_package_on() -> None:
    clone = f"/home/me/{OURS}"
    files = ("lib/python3.12/json/a.py", ".venv/lib/python3.12/site-packages/vllm/v1/a.py", f"{OURS}/cli/a.py")
    (stack,) = read_stacks([";".join(f"f ({clone}/{file}:1)" for file in files) + " 1"])
    assert stack == ("f (/json/a.py)", "f (/vllm/v1/a.py)", f"f (/{OURS}/cli/a.py)")
    assert [owner_of((frame,)) for frame in stack] == ["Python and libraries", "vLLM: other", OURS]


def test_tables_and_flames_show_the_time_a_step() -> None:
    shares = {"engine core": read_stacks(RAW.splitlines())}
    rows = table([("an arm", shares)])
    assert "engine core" in rows.columns[0].cells
    assert list(rows.columns[1].cells)[1] == "50"
    assert list(functions(shares).columns[2].cells) == ["10.0"]
    picture = ET.fromstring(draw(shares, "<a title>"))
    titles = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert "fill constrained_k2/turn/batch.py: 10 µs a step" in titles
    assert any(title and title.startswith("engine core") for title in titles)
    colors = Counter(element.get("fill") for element in picture.iter("{http://www.w3.org/2000/svg}rect"))
    assert colors["#e8590c"] == 2  # ours
