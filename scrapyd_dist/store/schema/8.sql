-- Version 8: what is remembered of plain jobs.

CREATE TABLE jobs (
    id      TEXT    PRIMARY KEY,
    is_over INTEGER NOT NULL,
    at      REAL    NOT NULL,  -- when it ended; until then, when it was posted; while it waits, infinity
    record  TEXT    NOT NULL   -- JSON
) WITHOUT ROWID;

CREATE INDEX jobs_by_end ON jobs (is_over, at);

-- One row: higher after each change of a job.
CREATE TABLE job_revision (revision INTEGER NOT NULL);
INSERT INTO job_revision VALUES (0);
