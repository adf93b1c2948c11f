//! A policy file, changed and read again, without a gateway around it.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::*;

const ONE: &str = "[[class]]\nname = \"default\"\nscheme = \"sr\"\n";
const TWO: &str = "[[class]]\nname = \"bulk\"\nmatch = { dscp = [8] }\nscheme = \"mds\"\nk = 32\nm = 8\n\
                   [[class]]\nname = \"default\"\nscheme = \"sr\"\nalpha = 2\n";

/// With the file in a folder; `key` is the gateway file's key for it.
fn reloader(folder: &Path, key: &str) -> Reloader {
    let text = include_str!("../../../docs/examples/gateway-a.toml").replace("file = \"policy.toml\"", key);
    let gateway = config::Gateway::parse(&folder.join("gateway.toml"), &text).unwrap();
    let policy = gateway.load_policy().unwrap();
    Reloader::new(gateway, policy, Arc::new(Telemetry::new(std::time::Instant::now())), None)
}

/// With a file in a folder, and both of these.
fn with_file() -> (TempDir, PathBuf, Reloader) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.toml");
    fs::write(&file, ONE).unwrap();
    let reloader = reloader(folder.path(), "file = \"policy.toml\"");
    (folder, file, reloader)
}

/// The answer, and what was put in force.
async fn reload(reloader: &mut Reloader) -> (Answer, Option<Policy>) {
    let mut adopted = None;
    let answer = reloader
        .reload(async |policy, _| {
            adopted = Some(policy);
            Ok(())
        })
        .await;
    (answer, adopted)
}

#[tokio::test]
async fn a_good_file_is_adopted_and_a_bad_one_changes_nothing() {
    let (_folder, file, mut reloader) = with_file();

    fs::write(&file, TWO).unwrap();
    let (answer, adopted) = reload(&mut reloader).await;
    assert_eq!((answer.adopted, answer.generation, answer.file.as_deref()), (true, 2, Some(&*file)));
    let differences = [
        "class bulk: added before default: mds: k = 32, m = 8, overhead 25 %, survives a burst of 8 packets",
        "class default: alpha: 1 -> 2",
    ];
    assert_eq!(
        (answer.differences.as_slice(), answer.problems.as_str()),
        (&differences.map(String::from)[..], "")
    );
    assert_eq!(adopted.unwrap().classes().len(), 2);

    // Not a second time, nor does an unreadable file change anything.
    for wrong in [TWO.replace("k = 32", "k = 320"), TWO.replace("[[", "[")] {
        fs::write(&file, wrong).unwrap();
        let (answer, adopted) = reload(&mut reloader).await;
        assert_eq!((answer.adopted, answer.generation, adopted), (false, 2, None));
        assert!(answer.problems.contains("policy.toml:"), "{}", answer.problems);
    }
    fs::remove_file(&file).unwrap();
    let (answer, adopted) = reload(&mut reloader).await;
    assert!(
        !answer.adopted && adopted.is_none() && answer.problems.contains("cannot read "),
        "{}",
        answer.problems
    );
    assert_eq!(reloader.telemetry.policy_info().refused, 3);

    // What is compared with is the last one that was adopted.
    fs::write(&file, TWO).unwrap();
    let (answer, _) = reload(&mut reloader).await;
    assert_eq!((answer.adopted, answer.generation, answer.differences.len()), (true, 3, 0));
    assert!(answer.to_string().ends_with(" generation 3, nothing has changed\n"), "{answer}");

    let events = reloader.telemetry.events().since(0).events;
    assert!(events.iter().all(|event| event.kind == "policy"), "{events:?}");
    let told: Vec<&str> = events.iter().map(|event| event.text.as_str()).collect();
    assert_eq!((told.len(), told[0], told[4]), (5, "generation 2, 2 changes", "generation 3, 0 changes"));
    assert!(told[1..4].iter().all(|text| text.starts_with("refused: ")), "{told:?}");
}

/// As from a server that does not answer.
#[tokio::test]
async fn a_file_that_cannot_be_read_in_time_is_refused() {
    let (_folder, file, mut reloader) = with_file();
    reloader.patience = Duration::from_millis(10);
    let (server, answers) = std::sync::mpsc::channel::<()>();
    let answers = std::sync::Mutex::new(answers);
    reloader.read = Arc::new(move |gateway| {
        // Until the sender is gone.
        let _ = answers.lock().unwrap().recv();
        gateway.check_policy()
    });
    let (answer, adopted) = reload(&mut reloader).await;
    assert_eq!((answer.adopted, answer.generation, adopted), (false, 1, None));
    assert!(answer.problems.starts_with("reading the policy file took more than "), "{}", answer.problems);
    let (answer, _) = reload(&mut reloader).await;
    assert!(answer.problems.starts_with("the policy file is still being read "), "{}", answer.problems);
    // Lets whoever reads go on.
    fs::write(&file, TWO).unwrap();
    drop(server);
    reloader.patience = PATIENCE;
    while reloader.overdue.as_ref().is_some_and(|reading| !reading.is_finished()) {
        tokio::task::yield_now().await;
    }
    let (answer, _) = reload(&mut reloader).await;
    assert!(answer.adopted, "{}", answer.problems);
}

/// It would wait for a writer for ever, and every later reload with it.
#[tokio::test]
async fn a_pipe_is_refused_at_once_and_a_file_is_taken_after_it() {
    let (_folder, file, mut reloader) = with_file();
    fs::remove_file(&file).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let (answer, adopted) = reload(&mut reloader).await;
    assert_eq!((answer.adopted, adopted), (false, None));
    assert!(answer.problems.contains("it is no regular file"), "{}", answer.problems);
    fs::remove_file(&file).unwrap();
    fs::write(&file, TWO).unwrap();
    let (answer, _) = reload(&mut reloader).await;
    assert!(answer.adopted, "{}", answer.problems);
}

#[tokio::test]
async fn a_policy_that_the_data_plane_refuses_is_not_the_policy() {
    let (_folder, file, mut reloader) = with_file();
    fs::write(&file, TWO).unwrap();
    let answer = reloader.reload(async |_, _| Err("no streams".to_owned())).await;
    assert_eq!((answer.adopted, answer.problems.as_str()), (false, "no streams\n"));
    let (answer, _) = reload(&mut reloader).await;
    assert_eq!((answer.generation, answer.differences.len()), (2, 2), "the differences are still to come");
}

#[tokio::test]
async fn an_identity_that_is_refused_is_an_event() {
    let (_folder, _, reloader) = with_file();
    let answer = reloader.refuse_identity("a.key: holds no private key\nname another\n");
    assert_eq!((answer.adopted, answer.file), (false, None));
    let events = reloader.telemetry.events().since(0).events;
    let told: Vec<_> = events.iter().map(|event| (event.kind.as_str(), event.text.as_str())).collect();
    assert_eq!(told, [("identity", "refused: a.key: holds no private key; name another")]);
}

#[tokio::test]
async fn warnings_come_with_the_answer() {
    let (_folder, file, mut reloader) = with_file();
    fs::write(&file, "[[class]]\nname = \"default\"\nscheme = \"mds\"\nk = 200\nm = 50\n").unwrap();
    let (answer, _) = reload(&mut reloader).await;
    assert!(
        answer.adopted && answer.problems.contains("its blocks close early at this rate"),
        "{}",
        answer.problems
    );
    let [finding] = &answer.findings[..] else { panic!("{:?}", answer.findings) };
    assert!(!finding.error && finding.message.starts_with("class default: "), "{finding:?}");
    assert_eq!(finding.line, Some(4), "{finding:?}");
    // With its place, for whoever wants no text.
    fs::write(&file, "[[class]]\nname = \"default\"\nscheme = \"mds\"\nk = 0\n").unwrap();
    let (answer, _) = reload(&mut reloader).await;
    let found: Vec<_> = answer.findings.iter().map(|finding| (finding.error, finding.line)).collect();
    assert!(!answer.adopted && found.contains(&(true, Some(4))), "{:?}", answer.findings);
}

#[tokio::test]
async fn without_a_file_there_is_nothing_to_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut reloader = reloader(folder.path(), "");
    let (answer, adopted) = reload(&mut reloader).await;
    assert_eq!((answer.adopted, answer.file.as_deref(), adopted), (true, None, None));
    assert!(answer.to_string().contains("names no policy.file"), "{answer}");
}
