"""Tensor annotations with named dimensions: `Float[Tensor, "n d"]`.

jaxtyping checks them in the tests. It is not needed to run the library, so where it is not installed
the annotations are plain, unchecked text.

Letters used everywhere: n queries, m coreset samples, d features, D random features, c classes, s runs.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped, UInt8
else:
    try:
        from jaxtyping import Bool, Float, Int, Shaped, UInt8
    except ImportError:

        class _Unchecked:
            """Stands in for a jaxtyping annotation: keeps the tensor type, drops the dimensions."""

            def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
                return item[0]

        Bool = Float = Int = Shaped = UInt8 = _Unchecked

__all__ = ["Bool", "Float", "Int", "Shaped", "UInt8"]
