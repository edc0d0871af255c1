//! `papilio-web`: the `papilio` command with a web server, and with TLS.
//!
//! `papilio` runs it in its own place for `serve --http`, and for TLS of `serve --nbd`: see
//! other_program.rs in crates/cli. It has all commands, and may be installed under the name
//! `papilio`, too. TLS for NBD is here because the web server brings rustls already: `papilio`
//! itself has no cryptography for networks.

#![forbid(unsafe_code)]

mod disk_tls;

use anyhow::Context;
use disk_tls::DiskTls;
use papilio::FileSystem;
use papilio_cli::{
    DrawnView, RunningWeb, TlsFiles, WebFrontEnd, WebJob, draw_heatmap, draw_usage, install_web, run,
};
use papilio_web::{
    Export, Limits, Picture, Pictures, Secret, Server, Settings, tls_config, tls_config_for_disks,
};
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Arc;

struct Front;

impl WebFrontEnd for Front {
    fn start(&self, listener: TcpListener, job: WebJob) -> anyhow::Result<Box<dyn RunningWeb>> {
        let mut export = Export::new(job.fs, &job.path, job.is_writable, &job.title)?;
        if let Some((uid, gid)) = job.user {
            export = export.user(uid, gid);
        }
        let secret = match &job.password {
            Some(password) => Secret::password(password).context("the password is empty")?,
            None => Secret::random().context("no random bytes")?,
        };
        let mut settings = Settings::new(secret);
        settings.tls = job.tls.map(|files| tls_config(&files.certificate, &files.key)).transpose()?;
        settings.networks = job.networks;
        settings.hosts = job.hosts;
        settings.pictures = Some(Box::new(Drawings { name: job.title }));
        if let Some(connections) = job.connections {
            let mut limits = Limits::default();
            limits.connections = connections;
            settings.limits = limits;
        }
        Ok(Box::new(Running(Server::start_on(listener, export, settings)?)))
    }

    fn disk_tls(&self, files: &TlsFiles) -> anyhow::Result<Arc<dyn papilio_nbd::Tls>> {
        let authorities = files.client_authorities.as_deref();
        let config = tls_config_for_disks(&files.certificate, &files.key, authorities)?;
        Ok(Arc::new(DiskTls::new(config)))
    }
}

struct Running(Server);

impl RunningWeb for Running {
    fn url(&self) -> String {
        self.0.url()
    }

    fn stop(self: Box<Self>) -> anyhow::Result<()> {
        Ok(self.0.stop()?)
    }
}

/// The pictures of the commands.
struct Drawings {
    name: String,
}

fn picture(drawn: anyhow::Result<DrawnView>) -> Result<Picture, String> {
    let drawn = drawn.map_err(|error| format!("{error:#}"))?;
    Ok(Picture::new(drawn.svg, drawn.title).table(drawn.columns, drawn.rows))
}

impl Pictures for Drawings {
    fn usage(&self, fs: &FileSystem) -> Result<Picture, String> {
        picture(draw_usage(fs, &self.name))
    }

    fn heatmap(&self, fs: &FileSystem) -> Result<Picture, String> {
        picture(draw_heatmap(fs, &self.name))
    }
}

fn main() -> ExitCode {
    install_web(&Front);
    run(std::env::args_os()).into()
}
