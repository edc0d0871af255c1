//! Tests of the parser of mount options.

use super::*;
use papilio::format::TreeId;
use papilio::{DiscardMode, OpenOptions, SubvolumeChoice};
use std::time::Duration;

fn parse(options: &str) -> MountOptions {
    MountOptions::parse(options).unwrap_or_else(|error| panic!("{options}: {error}"))
}

/// Returns the resulting options for opening, in `Debug` form.
fn opens(options: &str) -> String {
    format!("{:?}", parse(options).open)
}

#[test]
fn opens_are_the_servers_unless_the_option_says_otherwise() {
    let opens = |options: &str| MountOptions::parse(options).unwrap().opens;
    assert_eq!((opens(""), opens("opens=kernel,opens=server")), (None, Some(Opens::Server)));
    assert_eq!(opens("ro,opens=kernel"), Some(Opens::Kernel));
}

/// Returns what no options mean for opening the image.
fn default_open() -> OpenOptions {
    OpenOptions::new()
        .discard(DiscardMode::Async)
        .write(true)
        .cache_bytes(0)
        .direct_queue(true)
        .scarce_cache_bytes(2 << 20)
        .immutable_at_open(true)
        .subvolume(SubvolumeChoice::Default)
}

#[test]
fn no_options_mean_defaults() {
    for none in ["", "defaults", "rw", ",,", "rw,nofail,_netdev,x-systemd.automount,X-mount.mkdir,auto"] {
        let options = parse(none);
        assert!(!options.read_only && options.writeback_cache.is_none() && options.default_permissions);
        assert!(options.dev && options.suid && options.exec && !options.sync && !options.allow_other);
        assert_eq!(format!("{:?}", options.open), format!("{:?}", default_open()));
    }
}

#[test]
fn the_way_to_the_device_is_chosen_or_left_open() {
    let open = |options: &str| format!("{:?}", parse(options).open);
    let expected = |open: OpenOptions| format!("{open:?}");
    assert_eq!(open("device_io=direct"), expected(default_open().direct_io(true)));
    assert_eq!(open("device_io=direct,device_io=cached"), expected(default_open().direct_io(false)));
    assert_eq!(open("device_io=cached,device_io=auto"), expected(default_open()));
    let wrong = MountOptions::parse("device_io=some").unwrap_err().to_string();
    assert!(wrong.contains("auto, direct or cached"), "{wrong}");
}

#[test]
fn last_general_option_wins() {
    let options = parse("ro,noatime,nodev,nosuid,noexec,sync,dirsync,allow_other,fsname=disk\\,1,threads=3");
    assert!(options.read_only && options.sync && options.dirsync && options.allow_other);
    assert!(!options.dev && !options.suid && !options.exec);
    assert_eq!((options.noatime, options.max_threads), (Atime::Noatime, Some(3)));
    assert_eq!(options.fsname.as_deref(), Some("disk,1"));
    let options = parse("ro,rw,noatime,strictatime,user,exec,nowriteback_cache,thread_pool=8");
    assert!(!options.read_only && options.exec && !options.suid && options.writeback_cache == Some(false));
    assert_eq!((options.noatime, options.max_threads), (Atime::Strict, Some(8)));
    assert_eq!(options.transport, Transport::Classic);
    assert_eq!(parse("transport=ring,transport=auto").transport, Transport::Auto);
    assert_eq!(parse("transport=ring").transport, Transport::Ring);
}

#[test]
fn subvolumes_are_named_by_path_or_id() {
    let chosen = |options: &str| {
        let choice = format!("{:?}", parse(options).open);
        let start = choice.find("subvolume: ").unwrap();
        choice[start + 11..].split(", node_cache").next().unwrap().to_owned()
    };
    let shown = |choice: SubvolumeChoice| format!("{choice:?}");
    assert_eq!(chosen("subvol=/a/b"), shown(SubvolumeChoice::Path(b"a/b".to_vec())));
    assert_eq!(chosen("subvol=a\\,b"), shown(SubvolumeChoice::Path(b"a,b".to_vec())));
    assert_eq!(chosen("subvolid=256"), shown(SubvolumeChoice::Id(TreeId(256))));
    assert_eq!(chosen("subvolid=0"), shown(SubvolumeChoice::Id(TreeId(5))));
    let both = parse("subvolid=257,subvol=/a");
    assert_eq!(both.expected_subvolume, Some(TreeId(257)));
}

#[test]
fn data_options_follow_kernel_rules() {
    let base = default_open;
    let zstd = "zstd:5".parse().unwrap();
    let expectations = [
        ("compress=zstd:5", base().compress(zstd)),
        ("compress-force=zstd:5", base().compress_force(zstd)),
        ("compress", base().compress("zlib".parse().unwrap())),
        ("compress=zstd,compress=no", base()),
        // As the kernel clamps them.
        ("compress=zlib:10", base().compress("zlib:9".parse().unwrap())),
        ("compress=zlib:-3", base().compress("zlib:1".parse().unwrap())),
        ("compress=zlib:0", base().compress("zlib".parse().unwrap())),
        ("compress=zstd:16", base().compress("zstd:15".parse().unwrap())),
        ("compress=zstd:-99", base().compress("zstd:-15".parse().unwrap())),
        ("compress=lzo:5", base().compress("lzo".parse().unwrap())),
        ("nodatacow", base().no_data_cow(true)),
        ("nodatasum", base().no_data_sums(true)),
        ("nodatacow,datasum", base()),
        ("nodatacow,datacow", base().no_data_sums(true)),
        ("compress=zstd,nodatacow", base().no_data_cow(true)),
        ("nodatacow,compress=zstd:5", base().compress(zstd)),
        ("nodatacow,nodatasum", base().no_data_cow(true)),
    ];
    for (options, expected) in expectations {
        assert_eq!(opens(options), format!("{expected:?}"), "{options}");
    }
}

#[test]
fn other_btrfs_options() {
    let base = default_open;
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let expectations = [
        ("degraded,device=/dev/b,device=/dev/c", base().degraded(true).device("/dev/b").device("/dev/c")),
        ("ignore_signatures", base().ignore_signatures(true)),
        ("replay_bytes=1m", base().replay_bytes(1 << 20)),
        ("commit=5", base().commit_interval(seconds(5))),
        ("commit=0", base().commit_interval(seconds(30))),
        ("discard", base().discard(DiscardMode::Sync)),
        ("discard=async", base().discard(DiscardMode::Async)),
        ("discard=sync,nodiscard", base().discard(DiscardMode::Off)),
        ("max_inline=1k", base().max_inline(1024)),
        ("cache=64m", base().cache_bytes(64 << 20).scarce_cache_bytes(0)),
        ("device_timeout=20", base().device_timeout(seconds(20))),
        ("cache=0,notreelog", base().tree_log(false).scarce_cache_bytes(0)),
        ("notreelog,treelog", base()),
        ("ssd,space_cache=v2,noautodefrag,acl,lazytime", base()),
        ("rescue=usebackuproot", base().use_backup_root(true)),
        ("ro,rescue=usebackuproot:idatacsums:nologreplay", {
            base().write(false).use_backup_root(true).verify_data(false).replay_log(false)
        }),
        ("ro,nologreplay", base().write(false).replay_log(false)),
        ("ro,rescue=all", {
            let open = base().write(false).use_backup_root(true).verify_data(false).allow_older(true);
            open.ignore_bad_roots(true).ignore_meta_csums(true)
        }),
        ("ro,rescue=ibadroots:imetacsums:isuperflags", {
            base().write(false).ignore_bad_roots(true).ignore_meta_csums(true)
        }),
    ];
    for (options, expected) in expectations {
        assert_eq!(opens(options), format!("{expected:?}"), "{options}");
    }
    let following = parse("ro,follow=8s");
    assert_eq!(
        (following.follow, following.attr_timeout),
        (Some(Duration::from_secs(8)), Duration::from_secs(2))
    );
    assert_eq!((parse("ro").follow, parse("ro,follow=8").follow), (None, following.follow));
    assert!(parse("user_subvol_rm_allowed").user_subvol_rm_allowed);
    assert!(parse("skip_balance").skip_balance && !parse("").skip_balance);
}

#[test]
fn invalid_options_have_one_line_messages() {
    let expectations = [
        ("nonsense", "unknown mount option: nonsense"),
        ("nonsense=1", "unknown mount option: nonsense=1"),
        ("commit=soon", "mount option commit: \"soon\" is not a number from 0 to 4294967295"),
        ("commit", "mount option commit needs a value: commit=..."),
        ("subvolid=x", "mount option subvolid: \"x\" is not a number"),
        ("threads=0", "mount option threads: \"0\" is not a number from 1 to 1024"),
        ("transport=tcp", "mount option transport: \"tcp\" is not classic, ring or auto"),
        ("ro=1", "mount option ro takes no value, but \"1\" was given"),
        ("degraded=yes", "mount option degraded takes no value, but \"yes\" was given"),
        ("discard=never", "mount option discard: \"never\" is not sync, async or no"),
        ("rescue=all", "mount option rescue=all requires ro"),
        ("follow=5s", "mount option follow requires ro"),
        ("ro,follow=0", "mount option follow: \"0\" is not a number from 1 to 86400"),
        ("ro,follow", "mount option follow needs a value: follow=..."),
        ("noacl", "mount option noacl is not supported: access control lists are always enforced"),
        ("cache=4k", "mount option cache: \"4k\" is not 0 or at least 1M"),
        ("max_inline=5x", "mount option max_inline: \"5x\" is not a number of bytes"),
        ("max_inline=5000000k", "mount option max_inline: \"5000000k\" is not a number of bytes"),
    ];
    for (options, message) in expectations {
        assert_eq!(MountOptions::parse(options).unwrap_err().to_string(), message);
    }
    for wrong in ["compress=lzma", "compress=zlib:x", "compress=no:3", "rescue=nothing", "remount,ro"] {
        let message = MountOptions::parse(wrong).unwrap_err().to_string();
        assert!(message.starts_with("mount option ") && !message.contains('\n'), "{message}");
    }
}

#[test]
fn owners_and_permissions_are_parsed() {
    let shown = |options: &str| parse(options).ownership.to_string();
    assert_eq!(shown(""), "");
    assert_eq!(shown("uid=1000,gid=100,umask=22"), "uid=1000,gid=100,fmask=022,dmask=022");
    assert_eq!(shown("umask=077,fmask=133"), "fmask=133,dmask=077");
    assert_eq!(shown("idmap=u:0:1000:1,idmap=g:0:100:1"), "idmap=u:0:1000:1,idmap=g:0:100:1");
    assert_eq!(shown("idmap=0:1000:1,uid=7"), "uid=7,idmap=g:0:1000:1");
    let root = parse("allow_other,allow_root");
    assert!(root.allow_root && !root.allow_other);
    let other = parse("allow_root,allow_other");
    assert!(!other.allow_root && other.allow_other);
    for (options, message) in [
        ("uid=root", "mount option uid: \"root\" is not a number from 0 to 4294967294"),
        ("gid=4294967295", "mount option gid: \"4294967295\" is not a number from 0 to 4294967294"),
        ("umask=8", "mount option umask: \"8\" is not an octal number up to 777"),
        ("umask=+7", "mount option umask: \"+7\" is not an octal number up to 777"),
        ("dmask=1777", "mount option dmask: \"1777\" is not an octal number up to 777"),
        ("idmap=1:2", "mount option idmap: \"1:2\" is not [u:|g:|b:]IMAGE:MOUNT:COUNT"),
        ("idmap=0:0:9 5:50:1", "mount option idmap: \"5:50:1\" overlaps an earlier range"),
        ("opens=never", "mount option opens: \"never\" is not kernel or server"),
        ("opens", "mount option opens needs a value: opens=..."),
        ("idmap", "mount option idmap needs a value: idmap=..."),
    ] {
        assert_eq!(MountOptions::parse(options).unwrap_err().to_string(), message);
    }
}

/// Returns the options in the first column of the table in docs/mount.md.
fn documented() -> Vec<String> {
    let page = include_str!("../../../../docs/mount.md");
    let rows = page.lines().skip_while(|line| !line.starts_with("| option | effect |"));
    let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.map(|row| row.split(" | ").next().unwrap());
    // A table has `\|` for a bar.
    let cells = cells.map(|cell| cell.trim_start_matches("| ").replace("\\|", "|"));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Returns the ways to write an option: without and with what is in brackets, and each of several
/// values. Names of values become values.
fn ways_of(option: &str) -> Vec<String> {
    if let Some((name, choices)) = option.split_once("[=") {
        let choices = choices.trim_end_matches(']').replace("ALGORITHM[:LEVEL", "zstd:3|lzo|no");
        let given = choices.split('|').map(|choice| format!("{name}={choice}"));
        return [name.to_owned()].into_iter().chain(given).collect();
    }
    let Some((name, value)) = option.split_once('=') else { return vec![option.to_owned()] };
    let values = match value {
        "PATH" => "/a",
        "ID" | "N" => "5",
        "SECONDS" => "20",
        "BYTES" => "1m",
        "MASK" => "027",
        "NAME" => "disk",
        "[u:|g:|b:]IMAGE:MOUNT:COUNT" => "0:5:1|u:0:5:1|g:0:5:1|b:0:5:1",
        other => other,
    };
    values.split('|').map(|value| format!("{name}={value}")).collect()
}

#[test]
fn each_documented_option_takes_its_documented_value() {
    let documented = documented();
    assert!(documented.len() > 50, "{documented:?}");
    for option in documented.iter().flat_map(|option| ways_of(option)) {
        if option == "remount" {
            continue;
        }
        assert!(!option.chars().any(|letter| letter.is_ascii_uppercase()), "{option}");
        let max_inline = option.replace("max_inline=1m", "max_inline=4k");
        if let Err(error) = MountOptions::parse(&format!("ro,{max_inline}")) {
            panic!("{option}: {error}");
        }
    }
    // A value that is left out, and one that is too many, are refused by the same table.
    for name in ["commit", "device", "fsname", "replay_bytes", "subvol", "uid"] {
        assert!(MountOptions::parse(name).is_err(), "{name}");
    }
    for name in ["ro", "degraded", "nologreplay", "treelog", "nodatacow", "skip_balance", "allow_root"] {
        assert!(MountOptions::parse(&format!("{name}=1")).is_err(), "{name}");
    }
}
