-- Version 4: the throttle.

CREATE TABLE throttle (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
