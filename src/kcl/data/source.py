"""A dataset that kcl knows by name: where it may be, and how it is found, read, verified and fetched."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

from kcl.data import file_cache
from kcl.data.dataset import Dataset
from kcl.data.file_cache import Say, quiet
from kcl.errors import KclError

DATA_VARIABLE = "KCL_DATA"
ATTEMPTS = 5
"""Another process that repairs the same cache may remove a file before it is read."""


class DataSource(ABC):
    """`load` reads the data, after verifying them and fetching them if need be. The others return where they are."""

    name: str
    licence: str
    size: str
    how_to_get: str

    def __init__(self) -> None:
        if missing := [part for part in ("name", "licence", "size", "how_to_get") if not hasattr(self, part)]:
            raise TypeError(f"{type(self).__name__} lacks {', '.join(missing)}")

    @abstractmethod
    def load(self, data_dir: Path | str | None = None, say: Say = quiet) -> Dataset: ...

    @abstractmethod
    def find(self, data_dir: Path | str | None = None) -> Path | str | None:
        """The place `load` would read from, unopened; None if it would have to fetch."""

    @abstractmethod
    def verify(self, data_dir: Path | str | None = None) -> Path | str:
        """The place `load` would read from, after checking every byte; nothing is written, moved or fetched."""

    def fetch(self, say: Say = quiet) -> str:
        self.load(say=say)
        return str(self.find())

    def prepare(self, data_dir: Path | None = None, out: Path | None = None, say: Say = quiet) -> Path:  # noqa: ARG002
        """Decode image files into one file."""
        raise KclError(f"{self.name} needs no preparation: only the files of miniimagenet have to be decoded")

    def where(self) -> str | None:
        """The place as text, None also where it cannot be determined."""
        try:
            place = self.find()
        except KclError:
            return None
        return None if place is None else str(place)


class FileSource(DataSource):
    """Data in files: in the folder given; else in the one `KCL_DATA` names; else in the cache."""

    title: str
    layouts: tuple[str, ...]
    """Where the data may be below such a folder; in the cache, the first."""
    advice: str
    """How a user can provide the data."""

    @abstractmethod
    def place_in(self, folder: Path) -> Path | None:
        """The data if they are directly in a folder, unopened."""

    def search(self, folder: Path) -> Path | None:
        """The data below a folder, unopened."""
        return next(filter(None, (self.place_in(folder / layout) for layout in self.layouts)), None)

    def find(self, data_dir: Path | str | None = None) -> Path | None:
        return self.users_place(data_dir) or self.search(file_cache.cache_dir())

    def users_place(self, data_dir: Path | str | None) -> Path | None:
        """A folder that is given must hold the data; the one `KCL_DATA` names may."""
        if data_dir is None:
            named = os.environ.get(DATA_VARIABLE)
            return self.search(Path(named).expanduser()) if named else None
        folder = Path(data_dir).expanduser()
        place = self.search(folder)
        if place is None:
            places = ", ".join(str(folder / layout) for layout in self.layouts)
            raise KclError(f"{self.title} was not found under {data_dir} (looked in {places}): {self.advice}")
        return place

    def place(self, data_dir: Path | str | None) -> Path:
        """Where the data are; KclError where they are not found."""
        place = self.find(data_dir)
        if place is None:
            raise KclError(f"{self.title} was not found: {self.advice}")
        return place


class PublishedSource(FileSource):
    """Data that are published as files with known checksums. A user's folder is only ever read; in the cache a broken
    file is moved aside and fetched again."""

    @abstractmethod
    def checks(self, folder: Path) -> dict[Path, Callable[[], object]]:
        """The published files that are in a folder, and what to call to refuse those that are not the official ones."""

    @abstractmethod
    def read(self, folder: Path) -> Dataset:
        """The data in a folder, after verifying every file."""

    @abstractmethod
    def obtain(self, folder: Path, archive: Path | None, private: Path, say: Say) -> Iterator[Path]:
        """What a folder of the cache lacks, verified, in a private one: from a user's archive or else from the web."""

    def load(self, data_dir: Path | str | None = None, say: Say = quiet) -> Dataset:
        place = self.users_place(data_dir)
        if place is not None and place.is_dir():
            return self.read(place)
        if place is None and (named := os.environ.get(DATA_VARIABLE)):
            say(f"{DATA_VARIABLE}={named} does not hold all of {self.title}; looking in the cache")
        folder = file_cache.cache_dir() / self.layouts[0]
        for _ in range(ATTEMPTS):
            try:
                return self.read(folder)
            except KclError:
                self._mend(folder, place, say)
        return self.read(folder)

    def _mend(self, folder: Path, archive: Path | None, say: Say) -> None:
        """Move broken files of the cache aside and bring what is missing."""
        for path, check in self.checks(folder).items():
            try:
                check()
            except KclError as error:
                say(f"{error}; it is moved aside to {file_cache.move_aside(path).name}")
        if self.place_in(folder) == folder:
            return
        with file_cache.workshop(folder) as private:
            try:
                for path in self.obtain(folder, archive, private, say):
                    file_cache.publish(path, folder / path.name)
            except KclError as error:
                if archive is not None:
                    raise
                say(str(error))
                message = f"{self.title} was not found and could not be downloaded: {self.advice}"
                raise KclError(message) from None
        say(f"{self.title} is in {folder}")

    def verify(self, data_dir: Path | str | None = None) -> Path:
        place = self.place(data_dir)
        for check in self.checks(place if place.is_dir() else place.parent).values():
            check()
        return place
