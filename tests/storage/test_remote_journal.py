"""A journal whose writes another process commits."""

import pickle

from redraft.protocols import Reply
from redraft.storage.journal import Journal
from redraft.storage.remote_journal import RemoteJournal, without_metadata


def test_writes_are_committed_by_the_process_of_the_run(tmp_path):
    """Rows, records, results and replies are in its journal, and shared metadata are passed to it;
    others stay where they are.
    """
    path, metadata = tmp_path / "run.journal", {}
    with Journal(path) as journal:
        journal.update_run("run", invocation=1)
        journal.flush()

        def commit(sent):
            changes, changed = without_metadata(pickle.loads(pickle.dumps(sent)))
            metadata.update(changed)
            journal.write_changes(changes)
            journal.flush()

        with RemoteJournal(path, commit, ["spent"]) as remote:
            remote.begin_row("run", "r1", 0, "key", {"data": "a"}, '{"header":1}')
            remote.finish_row("run", "r1", "done", {"best": "b"})
            remote.response_cache["ab"] = Reply("well")
            remote.update_run("run", spent={"calls": 1.0}, state="running")
            remote.flush()
            row = journal.rows_by_id("run", ["r1"])["r1"]
            assert remote.rows_by_id("run", ["r1"]) == {"r1": row}
            assert (row.status, row.result) == ("done", {"best": "b"})
            assert journal.response_cache["ab"] == remote.response_cache["ab"] == Reply("well")
        assert metadata == {"spent": {"calls": 1.0}}
        assert journal.run("run").metadata == {"invocation": 1}
