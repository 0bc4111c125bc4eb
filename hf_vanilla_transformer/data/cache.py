"""Write tables of text into the cache of `datasets`, a chunk of rows at a time.

This is a module of its own because `datasets` patches names such as `open` in the module of a builder.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from datasets import (
    ArrowBasedBuilder,
    BuilderConfig,
    Dataset,
    DatasetInfo,
    DownloadManager,
    Features,
    SplitGenerator,
    Value,
    config,
)
from datasets.exceptions import DatasetGenerationError


def cached_pairs(key: str, tables: Callable[[], Iterator[pa.Table]]) -> Dataset:
    """Concatenate tables into one file of the cache, which is memory-mapped.

    Args:
        key (`str`): identifies the content; an entry of the cache with the same key is reused.
        tables: returns tables with strings in the columns `source` and `target`; called if the cache has no entry. If
            it fails, the cache keeps nothing.

    Returns:
        `Dataset`: the rows of all tables.

    Raises:
        OSError: if the cache cannot be written.
        Exception: any error that `tables` raises.
    """
    try:
        builder = _PairsBuilder(dataset_name="pairs", config_id=key, tables=tables)
        builder.download_and_prepare()
    except DatasetGenerationError as error:
        raise error.__cause__ or error from None
    except OSError as error:
        raise OSError(
            f"{config.HF_DATASETS_CACHE}, the cache of datasets, cannot be written ({error}); set HF_DATASETS_CACHE to "
            "a writable folder."
        ) from error
    return builder.as_dataset("train")


@dataclass
class _PairsConfig(BuilderConfig):
    tables: Callable[[], Iterator[pa.Table]] | None = None


class _PairsBuilder(ArrowBasedBuilder):
    BUILDER_CONFIG_CLASS = _PairsConfig

    def _info(self) -> DatasetInfo:
        return DatasetInfo(features=Features({"source": Value("string"), "target": Value("string")}))

    def _split_generators(self, dl_manager: DownloadManager) -> list[SplitGenerator]:
        return [SplitGenerator("train", gen_kwargs={})]

    def _generate_tables(self) -> Iterator[tuple[int, pa.Table]]:
        yield from enumerate(self.config.tables())
