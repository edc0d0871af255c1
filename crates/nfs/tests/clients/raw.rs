//! `Raw`: a client that sends single calls, for users of its choice.

use nfs3_types::mount::{self, dirpath, mountres3};
use nfs3_types::nfs3::{
    ACCESS3args, COMMIT3args, CREATE3args, GETATTR3args, LINK3args, LOOKUP3args, MKDIR3args, MKNOD3args,
    NFS_PROGRAM as P, Nfs3Option, Nfs3Result, READ3args, READDIR3args, READDIRPLUS3args, READLINK3args,
    REMOVE3args, RENAME3args, RMDIR3args, SETATTR3args, SYMLINK3args, WRITE3args, cookieverf3, createhow3,
    createverf3, devicedata3, diropargs3, fattr3, filename3, mknoddata3, nfs_fh3, nfsstat3, sattr3,
    specdata3, stable_how, symlinkdata3,
};
use nfs3_types::nfs3::{
    ACCESS3res, COMMIT3res, CREATE3res, GETATTR3res, LINK3res, LOOKUP3res, READ3res, READDIR3res,
    READDIRPLUS3res, READLINK3res, REMOVE3res, RENAME3res, SETATTR3res, WRITE3res,
};
use nfs3_types::rpc::{
    RPC_VERSION_2, accept_stat_data, auth_unix, call_body, msg_body, opaque_auth, reply_body, rpc_msg,
};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};
use std::cell::Cell;
use std::io::{Cursor, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub type Status<T> = Result<T, nfsstat3>;

/// A connection on which one user calls.
pub struct Raw {
    stream: TcpStream,
    pub user: Option<(u32, u32, Vec<u32>)>,
    xid: Cell<u32>,
}

fn status<T, E>(result: Nfs3Result<T, E>) -> Status<T> {
    match result {
        Nfs3Result::Ok(ok) => Ok(ok),
        Nfs3Result::Err((status, _)) => Err(status),
    }
}

pub fn name(text: &str) -> filename3<'static> {
    text.as_bytes().to_vec().into()
}

fn at(directory: &nfs_fh3, text: &str) -> diropargs3<'static> {
    diropargs3 { dir: directory.clone(), name: name(text) }
}

/// A part of a directory: its entries, the cookie of the last one, and whether it is the last part.
pub type Page<T> = (Vec<T>, u64, bool);

impl Raw {
    pub fn connect(address: SocketAddr, uid: u32, gid: u32, groups: &[u32]) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { stream, user: Some((uid, gid, groups.to_vec())), xid: Cell::new(1) }
    }

    /// A client that names no user.
    pub fn nameless(address: SocketAddr) -> Self {
        Self { user: None, ..Self::connect(address, 0, 0, &[]) }
    }

    /// Sends a message, and returns the reply; `None` if the server disconnects.
    pub fn exchange(&self, message: &[u8]) -> Option<Vec<u8>> {
        let mut stream = &self.stream;
        let header = (message.len() as u32 | 1 << 31).to_be_bytes();
        stream.write_all(&[&header[..], message].concat()).ok()?;
        let mut header = [0; 4];
        stream.read_exact(&mut header).ok()?;
        let mut reply = vec![0; (u32::from_be_bytes(header) & !(1 << 31)) as usize];
        stream.read_exact(&mut reply).ok()?;
        Some(reply)
    }

    /// Encodes a call with the next transaction number.
    pub fn encode(&self, program: u32, procedure: u32, arguments: &impl Pack) -> Vec<u8> {
        self.xid.set(self.xid.get() + 1);
        let cred = match &self.user {
            None => opaque_auth::default(),
            Some((uid, gid, gids)) => opaque_auth::auth_unix(&auth_unix {
                uid: *uid,
                gid: *gid,
                gids: gids.clone(),
                ..auth_unix::default()
            }),
        };
        let call = call_body {
            rpcvers: RPC_VERSION_2,
            prog: program,
            vers: 3,
            proc: procedure,
            cred,
            verf: opaque_auth::default(),
        };
        let mut message = Vec::new();
        rpc_msg { xid: self.xid.get(), body: msg_body::CALL(call) }.pack(&mut message).unwrap();
        arguments.pack(&mut message).unwrap();
        message
    }

    fn call<T: Unpack>(&self, program: u32, procedure: u32, arguments: &impl Pack) -> T {
        let reply = self.exchange(&self.encode(program, procedure, arguments)).expect("a reply");
        let mut reply = Cursor::new(reply);
        let (message, _) = rpc_msg::unpack(&mut reply).unwrap();
        let msg_body::REPLY(reply_body::MSG_ACCEPTED(accepted)) = &message.body else {
            panic!("{message:?}")
        };
        assert!(matches!(accepted.reply_data, accept_stat_data::SUCCESS), "{message:?}");
        let (results, _) = T::unpack(&mut reply).unwrap();
        assert_eq!(reply.position(), reply.get_ref().len() as u64, "the reply has more bytes");
        results
    }

    fn nfs<T: Unpack>(&self, procedure: P, arguments: &impl Pack) -> T {
        self.call(nfs3_types::nfs3::PROGRAM, procedure as u32, arguments)
    }

    pub fn mount(&self, path: &str) -> Result<nfs_fh3, mount::mountstat3> {
        match self.call(mount::PROGRAM, 1, &dirpath(Opaque::borrowed(path.as_bytes()))) {
            mountres3::Ok(ok) => Ok(nfs_fh3 { data: ok.fhandle.0 }),
            mountres3::Err(status) => Err(status),
        }
    }

    pub fn root(&self) -> nfs_fh3 {
        self.mount("/papilio").unwrap()
    }

    pub fn getattr(&self, object: &nfs_fh3) -> Status<fattr3> {
        let arguments = GETATTR3args { object: object.clone() };
        let found: GETATTR3res = self.nfs(P::NFSPROC3_GETATTR, &arguments);
        status(found).map(|ok| ok.obj_attributes)
    }

    pub fn lookup(&self, directory: &nfs_fh3, text: &str) -> Status<nfs_fh3> {
        let found: LOOKUP3res = self.nfs(P::NFSPROC3_LOOKUP, &LOOKUP3args { what: at(directory, text) });
        status(found).map(|ok| ok.object)
    }

    pub fn access(&self, object: &nfs_fh3, access: u32) -> u32 {
        let arguments = ACCESS3args { object: object.clone(), access };
        let found: ACCESS3res = self.nfs(P::NFSPROC3_ACCESS, &arguments);
        status(found).unwrap().access
    }

    pub fn read(&self, file: &nfs_fh3, offset: u64, count: u32) -> Status<(Vec<u8>, bool)> {
        let arguments = READ3args { file: file.clone(), offset, count };
        let found: READ3res<'static> = self.nfs(P::NFSPROC3_READ, &arguments);
        status(found).map(|ok| (ok.data.to_vec(), ok.eof))
    }

    pub fn write(
        &self,
        file: &nfs_fh3,
        offset: u64,
        data: &[u8],
        stable: stable_how,
    ) -> Status<(fattr3, stable_how)> {
        let data = Opaque::borrowed(data);
        let arguments = WRITE3args { file: file.clone(), offset, count: data.len() as u32, stable, data };
        let found: WRITE3res = self.nfs(P::NFSPROC3_WRITE, &arguments);
        status(found).map(|ok| (ok.file_wcc.after.unwrap(), ok.committed))
    }

    /// Writes as much as fits, and returns the number of bytes.
    #[allow(dead_code)] // Not all users of this file need it.
    pub fn write_some(&self, file: &nfs_fh3, offset: u64, data: &[u8]) -> Status<usize> {
        let (data, stable) = (Opaque::borrowed(data), stable_how::UNSTABLE);
        let arguments = WRITE3args { file: file.clone(), offset, count: data.len() as u32, stable, data };
        let found: WRITE3res = self.nfs(P::NFSPROC3_WRITE, &arguments);
        status(found).map(|ok| ok.count as usize)
    }

    /// Returns the verifier of the server, which a write of nothing tells.
    pub fn write_verifier(&self, file: &nfs_fh3) -> [u8; 8] {
        let (data, stable) = (Opaque::borrowed(&[]), stable_how::UNSTABLE);
        let arguments = WRITE3args { file: file.clone(), offset: 0, count: 0, stable, data };
        let found: WRITE3res = self.nfs(P::NFSPROC3_WRITE, &arguments);
        status(found).unwrap().verf.0
    }

    /// Sends bytes that are no record, and disconnects.
    pub fn send_and_leave(self, bytes: &[u8]) {
        let mut stream = &self.stream;
        stream.write_all(bytes).unwrap();
    }

    pub fn commit(&self, file: &nfs_fh3) -> Status<()> {
        let arguments = COMMIT3args { file: file.clone(), offset: 0, count: 0 };
        let found: COMMIT3res = self.nfs(P::NFSPROC3_COMMIT, &arguments);
        status(found).map(drop)
    }

    pub fn setattr(&self, object: &nfs_fh3, new_attributes: sattr3) -> Status<fattr3> {
        let arguments = SETATTR3args { object: object.clone(), new_attributes, guard: Nfs3Option::None };
        let found: SETATTR3res = self.nfs(P::NFSPROC3_SETATTR, &arguments);
        status(found).map(|ok| ok.obj_wcc.after.unwrap())
    }

    pub fn create_how(&self, directory: &nfs_fh3, text: &str, how: createhow3) -> Status<(nfs_fh3, fattr3)> {
        self.made(P::NFSPROC3_CREATE, &CREATE3args { where_: at(directory, text), how })
    }

    pub fn create(&self, directory: &nfs_fh3, text: &str, set: sattr3) -> Status<(nfs_fh3, fattr3)> {
        self.create_how(directory, text, createhow3::UNCHECKED(set))
    }

    pub fn create_exclusive(&self, directory: &nfs_fh3, text: &str, verifier: [u8; 8]) -> Status<nfs_fh3> {
        let how = createhow3::EXCLUSIVE(createverf3(verifier));
        self.create_how(directory, text, how).map(|made| made.0)
    }

    pub fn mkdir(&self, directory: &nfs_fh3, text: &str, attributes: sattr3) -> Status<(nfs_fh3, fattr3)> {
        self.made(P::NFSPROC3_MKDIR, &MKDIR3args { where_: at(directory, text), attributes })
    }

    pub fn symlink(&self, directory: &nfs_fh3, text: &str, target: &str) -> Status<(nfs_fh3, fattr3)> {
        let symlink_data = target.as_bytes().to_vec().into();
        let symlink = symlinkdata3 { symlink_attributes: sattr3::default(), symlink_data };
        self.made(P::NFSPROC3_SYMLINK, &SYMLINK3args { where_: at(directory, text), symlink })
    }

    pub fn mkfifo(&self, directory: &nfs_fh3, text: &str) -> Status<(nfs_fh3, fattr3)> {
        self.mknod(directory, text, mknoddata3::NF3FIFO(sattr3::default()))
    }

    pub fn mkdevice(&self, directory: &nfs_fh3, text: &str) -> Status<(nfs_fh3, fattr3)> {
        let spec = specdata3 { specdata1: 1, specdata2: 3 };
        let device = devicedata3 { dev_attributes: sattr3::default(), spec };
        self.mknod(directory, text, mknoddata3::NF3CHR(device))
    }

    fn mknod(&self, directory: &nfs_fh3, text: &str, what: mknoddata3) -> Status<(nfs_fh3, fattr3)> {
        self.made(P::NFSPROC3_MKNOD, &MKNOD3args { where_: at(directory, text), what })
    }

    fn made(&self, procedure: P, arguments: &impl Pack) -> Status<(nfs_fh3, fattr3)> {
        let made: CREATE3res = self.nfs(procedure, arguments);
        status(made).map(|ok| (ok.obj.unwrap(), ok.obj_attributes.unwrap()))
    }

    pub fn remove(&self, directory: &nfs_fh3, text: &str) -> Status<()> {
        let arguments = REMOVE3args { object: at(directory, text) };
        let done: REMOVE3res = self.nfs(P::NFSPROC3_REMOVE, &arguments);
        status(done).map(drop)
    }

    pub fn rmdir(&self, directory: &nfs_fh3, text: &str) -> Status<()> {
        let arguments = RMDIR3args { object: at(directory, text) };
        let done: REMOVE3res = self.nfs(P::NFSPROC3_RMDIR, &arguments);
        status(done).map(drop)
    }

    pub fn rename(&self, from: (&nfs_fh3, &str), to: (&nfs_fh3, &str)) -> Status<()> {
        let arguments = RENAME3args { from: at(from.0, from.1), to: at(to.0, to.1) };
        let done: RENAME3res = self.nfs(P::NFSPROC3_RENAME, &arguments);
        status(done).map(drop)
    }

    pub fn link(&self, file: &nfs_fh3, directory: &nfs_fh3, text: &str) -> Status<()> {
        let arguments = LINK3args { file: file.clone(), link: at(directory, text) };
        let done: LINK3res = self.nfs(P::NFSPROC3_LINK, &arguments);
        status(done).map(drop)
    }

    pub fn readlink(&self, link: &nfs_fh3) -> Status<Vec<u8>> {
        let arguments = READLINK3args { symlink: link.clone() };
        let found: READLINK3res<'static> = self.nfs(P::NFSPROC3_READLINK, &arguments);
        status(found).map(|ok| ok.data.as_ref().to_vec())
    }

    /// Lists a directory behind a cookie: names, the last cookie, whether it ends there.
    pub fn readdir(&self, dir: &nfs_fh3, cookie: u64, count: u32) -> Status<(Vec<String>, u64, bool)> {
        let cookieverf = cookieverf3::default();
        let arguments = READDIR3args { dir: dir.clone(), cookie, cookieverf, count };
        let found: READDIR3res<'static> = self.nfs(P::NFSPROC3_READDIR, &arguments);
        let list = status(found)?.reply;
        let last = list.entries.0.last().map_or(cookie, |entry| entry.cookie);
        let names = list.entries.0.iter().map(|entry| text_of(&entry.name)).collect();
        Ok((names, last, list.eof))
    }

    /// As [`Raw::readdir`]; for each name also whether the server tells its attributes and handle.
    pub fn readdirplus(&self, dir: &nfs_fh3, cookie: u64, maxcount: u32) -> Status<Page<(String, bool)>> {
        let cookieverf = cookieverf3::default();
        let arguments =
            READDIRPLUS3args { dir: dir.clone(), cookie, cookieverf, dircount: maxcount, maxcount };
        let found: READDIRPLUS3res<'static> = self.nfs(P::NFSPROC3_READDIRPLUS, &arguments);
        let list = status(found)?.reply;
        let last = list.entries.0.last().map_or(cookie, |entry| entry.cookie);
        let names = list.entries.0.iter().map(|entry| {
            assert_eq!(entry.name_attributes.is_some(), entry.name_handle.is_some());
            (text_of(&entry.name), entry.name_handle.is_some())
        });
        Ok((names.collect(), last, list.eof))
    }
}

fn text_of(name: &filename3<'_>) -> String {
    String::from_utf8(name.as_ref().to_vec()).unwrap()
}
