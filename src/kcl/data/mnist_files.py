"""The four files that MNIST is made of, how each is recognised, and who hands them out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OfficialFile:
    """One published file: `md5` is that of its content, `gz_md5` and `gz_bytes` those of the archive mirrors serve."""

    name: str
    split: str
    shape: tuple[int, ...]
    md5: str
    gz_md5: str
    gz_bytes: int

    @property
    def gz_name(self) -> str:
        return f"{self.name}.gz"


FILES = (
    OfficialFile(
        name="train-images-idx3-ubyte",
        split="train",
        shape=(60_000, 28, 28),
        md5="6bbc9ace898e44ae57da46a324031adb",
        gz_md5="f68b3c2dcbeaaa9fbdd348bbdeb94873",
        gz_bytes=9_912_422,
    ),
    OfficialFile(
        name="train-labels-idx1-ubyte",
        split="train",
        shape=(60_000,),
        md5="a25bea736e30d166cdddb491f175f624",
        gz_md5="d53e105ee54ea40749a09fcbcd1e9432",
        gz_bytes=28_881,
    ),
    OfficialFile(
        name="t10k-images-idx3-ubyte",
        split="test",
        shape=(10_000, 28, 28),
        md5="2646ac647ad5339dbf082846283269ea",
        gz_md5="9fb629c4189551a2d022fa330f9573f3",
        gz_bytes=1_648_877,
    ),
    OfficialFile(
        name="t10k-labels-idx1-ubyte",
        split="test",
        shape=(10_000,),
        md5="27ae3e4e09519cfbb04c329615203637",
        gz_md5="ec29112dd5afa0611ce80d1b7f02629c",
        gz_bytes=4_542,
    ),
)

# A plain-http mirror is safe to ask: nothing is accepted but by checksum.
MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")
