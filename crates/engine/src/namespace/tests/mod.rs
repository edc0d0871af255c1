//! Tests of name changes, on a live tree in memory.

mod consistency;
mod damage;
mod inheritance;
mod limits;
mod model;
mod rules;
mod setting;
mod world;
