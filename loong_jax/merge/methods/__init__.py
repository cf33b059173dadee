"""The methods of fusion, one table."""

from loong_jax.merge.methods.dropout import Dare, Della, LongcatFusion
from loong_jax.merge.methods.elections import Breadcrumbs, Ram, Sce, Ties
from loong_jax.merge.methods.method import Method
from loong_jax.merge.methods.sphere import Karcher, NuSlerp, Slerp
from loong_jax.merge.methods.sums import Fisher, FisherDeltas, Linear, TaskArithmetic
from loong_jax.own import Contract, OwnPart

METHODS: dict[str, type[Method]] = {  # by name on the command line
    "longcat": LongcatFusion,
    "linear": Linear,
    "task-arithmetic": TaskArithmetic,
    "ties": Ties,
    "dare": Dare,
    "della": Della,
    "breadcrumbs": Breadcrumbs,
    "sce": Sce,
    "ram": Ram,
    "slerp": Slerp,
    "nuslerp": NuSlerp,
    "karcher": Karcher,
    "fisher": Fisher,
    "fisher-deltas": FisherDeltas,
}
# Methods for a recipe's fusion: they need no importances and no fixed number of experts.
FusionMethod = (
    LongcatFusion
    | Linear
    | TaskArithmetic
    | Ties
    | Dare
    | Della
    | Breadcrumbs
    | Sce
    | Ram
    | Slerp
    | NuSlerp
    | Karcher
    | OwnPart
)
OWN_METHOD = Contract(
    FusionMethod,
    ("equation", "fuse", "settings"),
    "docs/how-to/add_merge_method.md",
    "Derive its class from loong_jax.merge.Method",
)
