//! Backups in memory: they are restored and compared, stopped at every request, damaged, pruned.
//!
//! - `PAPILIO_BACKUP_KILLS` sets the number of requests at which a run stops (24; 200 is long).
//! - `PAPILIO_REPOSITORIES` sets the number of repositories with changed bytes (3000).
//! - `PAPILIO_BACKUP_DAYS` sets the number of daily snapshots (14; 60 is long).

mod changed;
mod damaged;
mod hostile;
mod keys;
mod kills;
mod locks;
mod pruned;
mod restored;
mod world;
