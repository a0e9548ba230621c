"""The cohort: sample sheets, the splits of patients, and the tables of states."""
