//! Lists everything in an image: `cargo run --example list -- IMAGE`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let image = std::env::args_os().nth(1).ok_or("usage: list IMAGE")?;
    let fs = papilio::FileSystem::open(image)?;
    println!("{} {}", fs.uuid(), String::from_utf8_lossy(&fs.label()));
    for entry in fs.walk("/")? {
        let entry = entry?;
        let metadata = entry.inode.metadata();
        println!("{:o} {:>12} /{}", metadata.mode(), metadata.size(), String::from_utf8_lossy(&entry.path));
    }
    for subvolume in fs.subvolumes()? {
        println!(
            "subvolume {} {:?}",
            subvolume.id,
            subvolume.path.map(|path| String::from_utf8_lossy(&path).into_owned())
        );
    }
    Ok(())
}
