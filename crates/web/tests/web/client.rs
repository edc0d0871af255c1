//! A client of HTTP that sends exactly what a test says.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Whether the body came to its announced end.
    pub is_whole: bool,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A connection.
pub struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    address: SocketAddr,
    pub credentials: Option<String>,
}

/// Encodes bytes in Base64.
pub fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let at = |index: usize| u32::from(three.get(index).copied().unwrap_or_default());
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            match digit <= three.len() {
                true => text.push(char::from(DIGITS[(bits >> (18 - 6 * digit) & 63) as usize])),
                false => text.push('='),
            }
        }
    }
    text
}

impl Client {
    pub fn connect(address: SocketAddr, token: Option<&str>) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.set_nodelay(true).unwrap();
        let credentials = token.map(|token| format!("Basic {}", base64(format!("any:{token}").as_bytes())));
        Self { stream, buffer: Vec::new(), address, credentials }
    }

    /// Sends a request, and reads the answer.
    pub fn send(&mut self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut head = format!("{method} {target} HTTP/1.1\r\n");
        let has = |name: &str| headers.iter().any(|(found, _)| found.eq_ignore_ascii_case(name));
        if !has("host") {
            head.push_str(&format!("Host: {}\r\n", self.address));
        }
        if let Some(credentials) = self.credentials.as_ref().filter(|_| !has("authorization")) {
            head.push_str(&format!("Authorization: {credentials}\r\n"));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if (!body.is_empty() || method == "PUT") && !has("content-length") && !has("transfer-encoding") {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        self.raw(&[head.as_bytes(), body].concat()).unwrap();
        self.answer(method == "HEAD").unwrap()
    }

    pub fn get(&mut self, target: &str) -> Answer {
        self.send("GET", target, &[], b"")
    }

    /// Sends bytes.
    pub fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Lets the server see the end of what this client sends.
    pub fn end(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    fn fill(&mut self) -> io::Result<usize> {
        let mut piece = [0; 16 << 10];
        let read = self.stream.read(&mut piece)?;
        self.buffer.extend_from_slice(&piece[..read]);
        Ok(read)
    }

    fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(at) = self.buffer.windows(2).position(|two| two == b"\r\n") {
                let line = String::from_utf8_lossy(&self.buffer[..at]).into_owned();
                self.buffer.drain(..at + 2);
                return Ok(line);
            }
            if self.fill()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Returns whether the server has closed the connection, with nothing more to read.
    pub fn is_closed(&mut self) -> bool {
        self.buffer.is_empty() && matches!(self.fill(), Ok(0) | Err(_)) && self.buffer.is_empty()
    }

    /// Reads an answer; those of the class 1xx are skipped.
    pub fn answer(&mut self, is_head: bool) -> io::Result<Answer> {
        loop {
            let status = self.line()?;
            let code: u16 = status.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, format!("no status: {status:?}"))
            })?;
            let mut headers = Vec::new();
            loop {
                let line = self.line()?;
                if line.is_empty() {
                    break;
                }
                let (name, value) = line.split_once(": ").unwrap_or_else(|| panic!("no header: {line:?}"));
                headers.push((name.to_owned(), value.to_owned()));
            }
            if (100..200).contains(&code) {
                continue;
            }
            let mut answer = Answer { status: code, headers, body: Vec::new(), is_whole: true };
            if !is_head && !matches!(code, 204 | 304) {
                self.body(&mut answer)?;
            }
            return Ok(answer);
        }
    }

    fn body(&mut self, answer: &mut Answer) -> io::Result<()> {
        if answer.header("transfer-encoding") == Some("chunked") {
            loop {
                let Ok(size) = self.line() else {
                    answer.is_whole = false;
                    return Ok(());
                };
                let size = usize::from_str_radix(&size, 16).unwrap();
                while self.buffer.len() < size + 2 {
                    if !matches!(self.fill(), Ok(1..)) {
                        answer.is_whole = false;
                        return Ok(());
                    }
                }
                answer.body.extend_from_slice(&self.buffer[..size]);
                assert_eq!(&self.buffer[size..size + 2], b"\r\n");
                self.buffer.drain(..size + 2);
                if size == 0 {
                    return Ok(());
                }
            }
        }
        let Some(length) = answer.header("content-length").map(|length| length.parse::<usize>().unwrap())
        else {
            while matches!(self.fill(), Ok(1..)) {}
            answer.body = std::mem::take(&mut self.buffer);
            return Ok(());
        };
        while self.buffer.len() < length {
            if !matches!(self.fill(), Ok(1..)) {
                answer.is_whole = false;
                answer.body = std::mem::take(&mut self.buffer);
                return Ok(());
            }
        }
        answer.body = self.buffer.drain(..length).collect();
        Ok(())
    }
}
