//! Tests of the server over sockets: by a raw client, by WebDAV clients, and by a browser.

mod attacks;
mod browser;
mod client;
mod clients;
mod dav;
mod files;
mod kernel;
mod past;
mod random;
mod uploads;
mod views;
mod world;
