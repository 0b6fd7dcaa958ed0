"""Is an inference honest? Calibration of a user's own model and release design, and designs to choose from."""

from noisewise.calibration.coverage import Coverage, coverage
from noisewise.calibration.design import Design, design
from noisewise.calibration.discrepancy import mmd
from noisewise.calibration.geweke import JointTest, geweke
from noisewise.calibration.sbc import Calibration, posterior_sbc, sbc
from noisewise.calibration.simulate import Simulated, simulate
from noisewise.calibration.uniformity import Distance, ks_uniform

__all__ = [
    "Calibration",
    "Coverage",
    "Design",
    "Distance",
    "JointTest",
    "Simulated",
    "coverage",
    "design",
    "geweke",
    "ks_uniform",
    "mmd",
    "posterior_sbc",
    "sbc",
    "simulate",
]
