"""v0 import path of tasksets."""

from typing import TYPE_CHECKING

from verifiers.lazy_names import lazy_names

if TYPE_CHECKING:
    from verifiers.envs.agents.tasksets.cp import CPRubric as CPRubric
    from verifiers.envs.agents.tasksets.cp import CPTaskSet as CPTaskSet
    from verifiers.envs.agents.tasksets.harbor import HarborDatasetRubric as HarborDatasetRubric
    from verifiers.envs.agents.tasksets.harbor import HarborDatasetTaskSet as HarborDatasetTaskSet
    from verifiers.envs.agents.tasksets.harbor import HarborRubric as HarborRubric
    from verifiers.envs.agents.tasksets.harbor import HarborTaskSet as HarborTaskSet
    from verifiers.envs.agents.tasksets.lean import LEAN_SYSTEM_PROMPT as LEAN_SYSTEM_PROMPT
    from verifiers.envs.agents.tasksets.lean import LeanTaskSet as LeanTaskSet
    from verifiers.envs.agents.tasksets.math import MathTaskSet as MathTaskSet
    from verifiers.envs.agents.tasksets.swe import make_multiswe_taskset as make_multiswe_taskset
    from verifiers.envs.agents.tasksets.swe import make_openswe_taskset as make_openswe_taskset
    from verifiers.envs.agents.tasksets.swe import make_r2e_taskset as make_r2e_taskset
    from verifiers.envs.agents.tasksets.swe import make_scaleswe_taskset as make_scaleswe_taskset
    from verifiers.envs.agents.tasksets.swe import make_swe_taskset as make_swe_taskset
    from verifiers.envs.agents.tasksets.swe import make_swebench_taskset as make_swebench_taskset
    from verifiers.envs.agents.tasksets.swe import (
        make_swelego_real_taskset as make_swelego_real_taskset,
    )
    from verifiers.envs.agents.tasksets.swe import (
        make_swerebench_v2_taskset as make_swerebench_v2_taskset,
    )
    from verifiers.envs.agents.tasksets.swe import (
        make_swesmith_cpp_taskset as make_swesmith_cpp_taskset,
    )
    from verifiers.envs.agents.tasksets.swe import (
        make_swesmith_go_taskset as make_swesmith_go_taskset,
    )
    from verifiers.envs.agents.tasksets.swe import (
        make_swesmith_java_taskset as make_swesmith_java_taskset,
    )
    from verifiers.envs.agents.tasksets.swe import (
        make_swesmith_js_taskset as make_swesmith_js_taskset,
    )
    from verifiers.envs.agents.tasksets.swe import (
        make_swesmith_php_taskset as make_swesmith_php_taskset,
    )
    from verifiers.envs.agents.tasksets.swe import (
        make_swesmith_py_taskset as make_swesmith_py_taskset,
    )
    from verifiers.envs.agents.tasksets.swe import (
        make_swesmith_rs_taskset as make_swesmith_rs_taskset,
    )
    from verifiers.envs.agents.tasksets.swe import make_swesmith_taskset as make_swesmith_taskset
    from verifiers.envs.agents.tasksets.swe import (
        make_swesmith_ts_taskset as make_swesmith_ts_taskset,
    )

__all__, __getattr__, __dir__ = lazy_names(__name__)
