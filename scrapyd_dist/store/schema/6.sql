-- Version 6: which domains of the throttle have changed since a version of its rules; the latest changes only.

CREATE TABLE throttle_changes (
    version INTEGER NOT NULL,
    domain  TEXT    NOT NULL,
    PRIMARY KEY (version, domain)
) WITHOUT ROWID;
