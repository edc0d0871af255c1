//! `IoQueue` has the same results with threads of its own and in the caller's thread.

use papilio::{
    CheckOptions, FileSystem, IoCompletion, IoOperation, IoQueue, IoRequest, MkfsOptions, OpenOptions,
};
use std::path::PathBuf;
use std::sync::Arc;

const BLOCK: usize = 16 << 10;

fn image(folder: &tempfile::TempDir) -> PathBuf {
    let image = folder.path().join("queue.img");
    papilio::mkfs(&image, &MkfsOptions::new().size(256 << 20)).unwrap();
    image
}

fn open(image: &PathBuf) -> FileSystem {
    FileSystem::open_with(image, &OpenOptions::new().write(true)).unwrap()
}

/// Returns the content of block `index` of file `file`.
fn pattern(file: usize, index: u64) -> Vec<u8> {
    (0..BLOCK).map(|at| (at as u64 * 7 + index * 13 + file as u64 * 101) as u8).collect()
}

/// Submits all requests, waits whenever the queue is full, and returns the completions by token.
fn run(queue: &mut IoQueue<Vec<u8>>, requests: Vec<IoRequest<Vec<u8>>>) -> Vec<IoCompletion<Vec<u8>>> {
    let expected = requests.len();
    let mut done = Vec::new();
    for request in requests {
        let mut request = Some(request);
        while let Some(again) = request.take() {
            if let Err(refused) = queue.submit(again) {
                assert_eq!(queue.in_flight(), queue.depth());
                assert!(queue.wait(1, &mut done) >= 1);
                request = Some(refused);
            }
        }
    }
    while queue.in_flight() > 0 {
        queue.wait(usize::MAX, &mut done);
    }
    assert_eq!(queue.poll(&mut done), 0);
    done.sort_by_key(|completion| completion.token);
    assert_eq!(done.len(), expected);
    done
}

fn all_operations(threads: usize) {
    let folder = tempfile::tempdir().unwrap();
    let image = image(&folder);
    let fs = open(&image);
    let mut queue = IoQueue::with_threads(7, threads).unwrap();
    let files: Vec<_> = (0..3).map(|n| Arc::new(fs.create_file(format!("/f{n}")).unwrap())).collect();
    let requests = |operation: &dyn Fn(usize, u64) -> IoOperation<Vec<u8>>| {
        let mut requests = Vec::new();
        for (n, file) in files.iter().enumerate() {
            for index in 0..20 {
                let token = n as u64 * 100 + index;
                requests.push(IoRequest { file: Arc::clone(file), operation: operation(n, index), token });
            }
        }
        requests
    };
    let at = |index| index * BLOCK as u64;

    let writes = requests(&|n, index| IoOperation::Write { buffer: pattern(n, index), offset: at(index) });
    for completion in run(&mut queue, writes) {
        assert_eq!(completion.result.unwrap(), BLOCK);
        assert_eq!(completion.buffer.unwrap().len(), BLOCK);
    }
    let reads = || requests(&|_, index| IoOperation::Read { buffer: vec![0; BLOCK], offset: at(index) });
    for completion in run(&mut queue, reads()) {
        assert_eq!(completion.result.unwrap(), BLOCK);
        let (n, index) = ((completion.token / 100) as usize, completion.token % 100);
        assert!(completion.buffer.unwrap() == pattern(n, index), "file {n}, block {index}");
    }

    let punches = requests(&|_, index| match index % 4 {
        0 => IoOperation::PunchHole { offset: at(index), length: BLOCK as u64 },
        1 => IoOperation::Allocate { offset: at(30), length: 8192, keep_size: true },
        2 => IoOperation::Fsync,
        _ => IoOperation::Fdatasync,
    });
    for completion in run(&mut queue, punches) {
        let expected = [BLOCK, 8192, 0, 0][(completion.token % 4) as usize];
        assert_eq!(completion.result.unwrap(), expected);
        assert!(completion.buffer.is_none());
    }
    for completion in run(&mut queue, reads()) {
        let (n, index) = ((completion.token / 100) as usize, completion.token % 100);
        let expected = if index % 4 == 0 { vec![0; BLOCK] } else { pattern(n, index) };
        assert!(completion.buffer.unwrap() == expected, "file {n}, block {index}");
    }
    assert_eq!(files[0].len(), at(20));
    drop((queue, files));
    fs.close().unwrap();
    let report = FileSystem::open(&image).unwrap().check(&CheckOptions::new().data_csum(true)).unwrap();
    assert!(report.is_clean());
}

#[test]
fn all_operations_in_the_callers_thread() {
    all_operations(0);
}

#[test]
fn all_operations_in_threads() {
    all_operations(3);
}

#[test]
fn a_full_queue_returns_the_request() {
    let folder = tempfile::tempdir().unwrap();
    let fs = open(&image(&folder));
    let file = Arc::new(fs.create_file("/f").unwrap());
    let request = |token| IoRequest {
        file: Arc::clone(&file),
        operation: IoOperation::Write { buffer: vec![1; 4096], offset: token * 4096 },
        token,
    };
    // A depth of 0 means 1.
    assert_eq!(IoQueue::<Vec<u8>>::new(0).depth(), 1);
    let mut queue = IoQueue::new(2);
    queue.submit(request(0)).unwrap();
    queue.submit(request(1)).unwrap();
    let refused = queue.submit(request(2)).unwrap_err();
    assert_eq!(refused.token, 2);
    assert_eq!(refused.operation, request(2).operation);
    let mut done = Vec::new();
    assert_eq!(queue.wait(5, &mut done), 2);
    queue.submit(refused).unwrap();
    assert_eq!(queue.wait(1, &mut done), 1);
    assert_eq!(file.len(), 3 * 4096);
}

#[test]
fn errors_come_back_with_the_buffer() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(&folder);
    let fs = open(&image);
    fs.create_file("/f").unwrap().write_all_at(&[9; 5000], 0).unwrap();
    fs.close().unwrap();
    let fs = FileSystem::open(&image).unwrap();
    let file = Arc::new(fs.open_file("/f").unwrap());
    for threads in [0, 1] {
        let mut queue = IoQueue::with_threads(4, threads).unwrap();
        let operations = [
            IoOperation::Write { buffer: vec![3; 10], offset: 0 },
            IoOperation::Read { buffer: vec![0; 4096], offset: 4096 },
            IoOperation::Read { buffer: vec![0; 10], offset: 9000 },
            IoOperation::Fsync,
        ];
        let requests = operations.into_iter().enumerate().map(|(token, operation)| IoRequest {
            file: Arc::clone(&file),
            operation,
            token: token as u64,
        });
        let done = run(&mut queue, requests.collect());
        assert_eq!(done[0].result.as_ref().unwrap_err().errno(), 30);
        assert_eq!(done[0].buffer.as_deref(), Some(&[3; 10][..]));
        // A read across the end of the file is short.
        assert_eq!(*done[1].result.as_ref().unwrap(), 904);
        assert_eq!(done[1].buffer.as_ref().unwrap()[..904], [9; 904]);
        assert_eq!(*done[2].result.as_ref().unwrap(), 0);
        assert!(done[3].result.is_err() && done[3].buffer.is_none());
    }
}

#[test]
fn a_dropped_queue_carries_out_its_requests() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(&folder);
    let fs = open(&image);
    for threads in [0, 2] {
        let file = Arc::new(fs.create_file(format!("/f{threads}")).unwrap());
        let mut queue = IoQueue::with_threads(64, threads).unwrap();
        for token in 0..64 {
            let operation =
                IoOperation::Write { buffer: vec![token as u8; BLOCK], offset: token * BLOCK as u64 };
            queue.submit(IoRequest { file: Arc::clone(&file), operation, token }).unwrap();
        }
        drop(queue);
        assert!(
            file.read_all().unwrap().chunks(BLOCK).enumerate().all(|(at, block)| block == [at as u8; BLOCK])
        );
        assert_eq!(file.len(), 64 * BLOCK as u64);
        // No request is running, and none holds the file.
        assert_eq!(Arc::strong_count(&file), 1);
    }
    fs.close().unwrap();
    let report = FileSystem::open(&image).unwrap().check(&CheckOptions::new().data_csum(true)).unwrap();
    assert!(report.is_clean());
}
