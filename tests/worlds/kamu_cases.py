"""What kamu's tests of ingest ask, by their names (commit f9553238), and what becomes of each here.

``docs/reference/kamu-compatibility.md`` has their numbers and those with another answer, which a test compares. The
tests that show an answer are of this tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

Answer: TypeAlias = Literal["kamu's", "other", "not asked"]
"""``not asked``: the test is about the inside of kamu, and nothing that a user could see."""
_GOLDEN: Final = "engine/ingest/test_golden.py::"
_FETCH: Final = "unit/odfd/ingest/test_fetch.py::"
_CONTAINERS: Final = "contract/odfd/test_programs.py::"
_MQTT: Final = "contract/odfd/test_mqtt.py::"
_PACKED: Final = "unit/engines/ingest/test_packed_files.py::"
_FOREIGN: Final = "unit/engines/ingest/test_foreign_files.py::"
_ALTERED: Final = "engine/ingest/test_sources.py::test_each_type_is_taken_in_as_if_it_had_always_been_there"
_STATE: Final = "unit/chain/test_state.py::test_a_loaded_state_is_the_folded_state"


class Case(NamedTuple):
    """One test of kamu."""

    name: str
    """Without ``test_``."""
    shown: str
    """The test of this tree that shows the answer, below ``tests``."""
    answer: Answer = "kamu's"
    why: str = ""


def _same(prefix: str, shown: str, names: str) -> tuple[Case, ...]:
    return tuple(Case(f"{prefix}{name}", shown) for name in names.split())


_BATCHES: Final = f"{_CONTAINERS}test_batches_go_on_where_the_last_one_ended"
_FILLED: Final = f"{_CONTAINERS}test_variables_and_arguments_are_filled_in_and_no_others_are_seen"
_ROUNDS: Final = f"{_GOLDEN}test_rounds"
_COLUMN: Final = f"{_GOLDEN}test_an_optional_column_is_added"
_AS: Final = f"{_GOLDEN}test_as_the_reference"
_INSIDE: Final = "how kamu's writer finds out what its chain says; the state of a chain is loaded here"
_DESCRIBED: Final = "unit/odfd/datasets/test_records.py::test_a_schema_may_only_describe_columns_anew"

SUITES: Final[Mapping[str, tuple[Case, ...]]] = {
    "core/ingest/test_fetch": (
        Case("fetch_url_file", f"{_FETCH}test_a_file_url"),
        Case("fetch_url_http_unreachable", f"{_FETCH}test_http_refusals"),
        Case("fetch_url_http_not_found", f"{_FETCH}test_what_to_do_is_said_by_what_the_server_says"),
        Case("fetch_url_http_ok", f"{_FETCH}test_http_answers"),
        *_same(
            "fetch_url_http_env_", f"{_FETCH}test_headers_and_templates", "interpolation interpolation_with_default"
        ),
        Case("fetch_url_ftp_ok", "contract/odfd/test_file_servers.py::test_a_file_comes_again_only_when_it_changed"),
        Case("fetch_files_glob", f"{_FETCH}test_files_come_in_the_order_of_their_names"),
        *_same("fetch_mqtt_", f"{_MQTT}test_messages_between_two_pulls_come_once", "empty one_record"),
        Case("fetch_container_ok", f"{_CONTAINERS}test_its_output_is_the_file"),
        *_same("fetch_container_", _FILLED, "env_vars args_templating batch_size_default batch_size_set"),
        Case(
            "fetch_container_batch_size_invalid_format",
            f"{_CONTAINERS}test_what_is_no_container_of_a_source_is_refused",
            "other",
            "refused when the manifest is applied (`fetch-container`), where kamu refuses the pull",
        ),
        *_same("fetch_container_has_more_", _BATCHES, "no_data data_is_less_than_a_batch data_is_more_than_a_batch"),
    ),
    "core/ingest/test_prep": (
        Case("prep_pipe", "contract/odfd/test_programs.py::test_the_output_is_the_file"),
        Case("prep_decompress_zip_single_file", "unit/odfd/ingest/test_sources.py::test_gzip_and_zip"),
        Case("prep_decompress_zip_bad_file", "unit/odfd/ingest/test_sources.py::test_torn_files"),
        Case("prep_decompress_gzip", "unit/odfd/ingest/test_sources.py::test_gzip_and_zip"),
    ),
    "core/ingest/test_polling_ingest": (
        Case("ingest_polling_snapshot", f"{_GOLDEN}test_polling_snapshot"),
        Case("ingest_polling_ledger", f"{_GOLDEN}test_polling_ledger"),
        Case("ingest_polling_empty_data", f"{_GOLDEN}test_no_data_at_all"),
        Case("ingest_polling_event_time_as_date", f"{_GOLDEN}test_event_time_may_be_a_date"),
        Case("ingest_polling_event_time_of_invalid_type", f"{_GOLDEN}test_event_time_of_another_type_is_refused"),
        Case("ingest_polling_bad_column_names_preserve", f"{_GOLDEN}test_column_names_are_kept_as_they_are"),
        Case("ingest_polling_bad_column_names_rename", f"{_GOLDEN}test_a_query_names_columns_anew"),
        Case("ingest_polling_schema_case_sensitivity", f"{_GOLDEN}test_column_names_are_kept_as_they_are"),
        Case("ingest_polling_preprocess_with_spark", f"{_GOLDEN}test_polling_snapshot"),
        Case(
            "ingest_polling_preprocess_with_flink",
            "node/test_manifests.py::test_refused_with_its_place",
            "other",
            "refused when it is applied (`preprocess-engine`): write `engine: spark`",
        ),
        Case("ingest_polling_deprecated_ddl_schema", f"{_GOLDEN}test_polling_ledger"),
    ),
    "core/ingest/test_push_ingest": (
        Case(
            "ingest_push_url_stream",
            "node/test_publishing.py::test_once_over_restarts_and_told_as_the_first_time",
        ),
        Case(
            "ingest_push_media_type_override", "unit/odfd/ingest/test_driver.py::test_a_format_is_honoured_or_refused"
        ),
        Case("ingest_push_schema_stability", _ROUNDS),
        *_same(
            "ingest_inference_automatic_",
            f"{_GOLDEN}test_guessed_schemas",
            "coercion_of_event_time_from_string coercion_of_event_time_from_unixtime renaming_of_conflicting_columns",
        ),
        Case("ingest_sql_case_sensitivity", f"{_GOLDEN}test_queries_are_case_sensitive"),
        Case("ingest_push_with_predefined_data_schema", _COLUMN),
        Case(
            "ingest_push_schema_and_source_evolution",
            _ALTERED,
            "other",
            "the same rows, by `odfctl schema alter`, which writes both events in one commit",
        ),
        Case(
            "ingest_push_deprecated_ddl_schema", "unit/odfd/ingest/test_driver.py::test_a_chain_is_read_once_for_a_push"
        ),
    ),
    "core/ingest/test_writer": (
        *_same(
            "data_writer_",
            _ROUNDS,
            "happy_path rejects_incompatible_schema nullability_required_to_optional_incompatible"
            " nullability_optional_to_required_coerces",
        ),
        *_same(
            "data_writer_offsets_are_sequential_",
            "engine/ingest/test_streamed.py::test_sorted_rows_are_written_as_they_come",
            "partitioned serialized",
        ),
        *_same(
            "data_writer_",
            _ROUNDS,
            "ledger_orders_by_event_time snapshot_orders_by_pk_and_operation_type normalizes_timestamps_to_utc_millis",
        ),
        Case("data_writer_optimal_parquet_encoding", f"{_GOLDEN}test_encoding_is_the_references"),
        Case("data_writer_schema_evolution_from_inferred", _DESCRIBED),
        Case("data_writer_schema_evolution_from_explicit", _DESCRIBED),
        Case("data_writer_schema_evolution_from_legacy", _DESCRIBED),
        *_same("data_writer_schema_evolution_add_optional_field_merge_", _COLUMN, "append ledger snapshot"),
        Case("data_writer_object_link", _ROUNDS),
        *(
            Case(f"data_writer_builder_scan_{name}", _STATE, "not asked", _INSIDE)
            for name in ["no_source", "polling_source", "push_source", "push_source_with_extra_events"]
        ),
    ),
    "ingest-datafusion/test_merge_strategy_append": _same("append_merge_", _AS, "to_empty to_some"),
    "ingest-datafusion/test_merge_strategy_changelog_stream": _same("changelog_merge_", _AS, "to_empty unseen"),
    "ingest-datafusion/test_merge_strategy_ledger": _same(
        "ledger_merge_",
        _AS,
        "to_empty unseen seen_tail_ordered seen_tail_unordered seen_middle respects_pk invalid_pk",
    ),
    "ingest-datafusion/test_merge_strategy_snapshot": (
        *_same(
            "snapshot_project_",
            f"{_GOLDEN}test_state_is_the_latest_row_of_each_key",
            "empty append append_retract correct mixed",
        ),
        *_same(
            "snapshot_merge_",
            _AS,
            "to_empty no_changes_ordered no_changes_unordered mix_of_changes invalid_pk input_carries_event_time",
        ),
    ),
    "ingest-datafusion/test_merge_strategy_upsert_stream": _same(
        "upsert_merge_",
        _AS,
        "to_empty_as_is to_empty_inter_batch_upserts unseen noop_upsert_ordered noop_upsert_unordered"
        " update_in_separate_batch update_in_same_batch delete_in_separate_batch delete_in_same_batch",
    ),
    "ingest-datafusion/test_reader_csv": (
        Case("read_csv_with_schema", f"{_GOLDEN}test_csv_with_schema"),
        Case("read_csv_no_schema_no_infer", f"{_GOLDEN}test_csv_without_schema_is_text"),
        Case("read_csv_no_schema_infer", f"{_GOLDEN}test_csv_guesses_when_asked"),
        Case("read_csv_no_header", f"{_GOLDEN}test_csv_has_no_header_unless_said"),
        Case("read_csv_null_values", f"{_GOLDEN}test_csv_empty_is_null"),
        Case("read_tsv_null_values", f"{_GOLDEN}test_tsv_empty_is_null"),
    ),
    "ingest-datafusion/test_reader_geojson": _same(
        "read_geojson_", f"{_GOLDEN}test_geojson", "with_schema infer_schema"
    ),
    "ingest-datafusion/test_reader_json": _same("read_json_", f"{_GOLDEN}test_json_sub_path_and_array", "object array"),
    "ingest-datafusion/test_reader_ndgeojson": _same(
        "read_ndgeojson_", f"{_GOLDEN}test_geojson", "with_schema infer_schema"
    ),
    "ingest-datafusion/test_reader_ndjson": (
        Case("read_ndjson_with_schema", f"{_GOLDEN}test_ndjson_with_schema"),
        Case("read_ndjson_infer_schema", f"{_GOLDEN}test_ndjson_guessed"),
        Case("read_ndjson_format_date", f"{_GOLDEN}test_ndjson_dates"),
        Case("read_ndjson_format_timestamp", f"{_GOLDEN}test_ndjson_times"),
        Case("read_ndjson_format_timestamp_parse_failed", f"{_GOLDEN}test_ndjson_bad_time_names_its_line"),
    ),
    "ingest-datafusion/test_reader_parquet": (
        Case("read_parquet", f"{_GOLDEN}test_parquet_round"),
        Case("read_parquet_schema_coercion", f"{_GOLDEN}test_parquet_becomes_what_is_declared"),
    ),
    "ingest-datafusion/test_reader_shapefile": (
        *_same("read_shapefile_", f"{_FOREIGN}test_shapefiles", "with_schema infer_schema"),
        Case("read_shapefile_with_subpath_exists", f"{_FOREIGN}test_one_of_several_shapefiles"),
        Case("read_shapefile_with_subpath_missing", f"{_FOREIGN}test_one_of_several_shapefiles"),
        Case("read_shapefile_geom", f"{_FOREIGN}test_shapefiles"),
    ),
}


def is_counted_apart(suite: str, case: Case) -> bool:
    """Whether a test is about preparation or containers, and not one of the 107 of ingest."""
    return suite == "core/ingest/test_prep" or case.name.startswith("fetch_container_")


def counts() -> str:
    """How many tests have which answer, as rows of Markdown, and the names of those that have another one."""
    lines = ["| here | of all | of ingest | of preparation and containers |", "|---|---|---|---|"]
    of = {
        apart: [case for suite, cases in SUITES.items() for case in cases if is_counted_apart(suite, case) == apart]
        for apart in (False, True)
    }
    for answer in (*get_args(Answer), ""):
        rest, apart = (sum(answer in ("", case.answer) for case in of[each]) for each in (False, True))
        lines.append(f"| {answer or '**together**'} | {rest + apart} | {rest} | {apart} |")
    return "\n".join(lines) + "\n"


def table() -> str:
    """The counts, and the cases with another answer as rows of Markdown."""
    lines = [counts(), "| kamu's test | here | shown by |", "|---|---|---|"]
    lines += [
        f"| {case.name} | {case.answer}: {case.why} | {case.shown.rpartition('/')[2]} |"
        for cases in SUITES.values()
        for case in cases
        if case.answer != "kamu's"
    ]
    return "\n".join(lines) + "\n"
