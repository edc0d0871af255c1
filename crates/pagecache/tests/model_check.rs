//! Races, tried in many interleavings by shuttle (`cargo test -p papilio-pagecache --features shuttle`).
