//! Results for other programs.

use super::*;

#[test]
fn results_are_there_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, err) = parts(&longhaul(folder.path(), &["keys", "--json", "--dir", "keys", "a", "b"]));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let keys: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(keys["authority"]["outcome"], "created");
    assert_eq!(
        (&keys["sites"][1]["name"], &keys["sites"][1]["files"]["key"]),
        (&"b".into(), &"keys/b.key".into())
    );

    for (adopted, status, wanted) in [(true, "200 OK", 0), (false, "422 Unprocessable Entity", 2)] {
        let answer = serde_json::json!({
            "adopted": adopted, "file": "policy.toml", "generation": 2, "differences": [],
            "identity": [], "problems": "", "findings": [],
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let admin = listener.local_addr().unwrap().to_string();
        let text = answer.to_string();
        let answered = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", text.len());
            // Requests have no body, and this one fits into one segment.
            assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
            stream.write_all((head + &text).as_bytes()).unwrap();
        });
        let (code, out, _) = parts(&longhaul(folder.path(), &["reload", "--json", "--admin", &admin]));
        answered.join().unwrap();
        assert_eq!((code, serde_json::from_str::<Value>(&out).unwrap()), (Some(wanted), answer));
    }
}

#[test]
fn results_are_json_if_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let json = |arguments: &[&str], code: i32| -> Value {
        let (status, out, err) = parts(&longhaul(path, arguments));
        assert_eq!(status, Some(code), "{arguments:?}: {err}");
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{arguments:?}: {error} in\n{out}"))
    };
    let sites = ["--site", "a,10.9.0.1,10.0.0.0/24,lo", "--site", "b,10.9.0.2,10.0.1.0/24,lo"];
    let made = json(&[&["init", "--json", "--rate", "1 Gbit/s"][..], &sites].concat(), 0);
    assert_eq!((&made[0]["site"], &made[1]["gateway"]), (&"a".into(), &"./b.toml".into()));
    fs::write(path.join("bad.toml"), "[[class]]\nname = \"default\"\nshceme = \"sr\"\n").unwrap();
    let checked = json(&["check", "--json", "a.toml", "bad.toml"], 2);
    assert_eq!((&checked[0]["valid"], &checked[0]["kind"]["gateway"]["peer"]), (&true.into(), &"b".into()));
    let problem = &checked[1]["problems"][0];
    assert_eq!(
        (&problem["error"], &problem["line"], &problem["column"]),
        (&true.into(), &3.into(), &1.into())
    );
    assert_eq!((&checked[1]["valid"], &checked[1]["kind"]), (&false.into(), &Value::Null));
    let link = ["--rate", "10 Gbit/s", "--rtt", "25 ms", "--drop", "0.1%"];
    let plan = json(&[&["plan", "--json"][..], &link].concat(), 0);
    assert_eq!(plan["link"]["rate"], 10_000_000_000_u64);
    let sizes = plan["classes"][0]["sizes"].as_array().unwrap();
    assert!(sizes.len() > 5 && sizes[0]["schemes"].as_array().unwrap().len() == 4, "{plan}");
    let quick =
        ["simulate", "--json", "--messages", "20", "--size", "64 KiB", "--scheme", "sr", "--threads", "1"];
    let rows = json(&quick, 0);
    assert_eq!((&rows[0]["size"], &rows[0]["scheme"]), (&65_536.into(), &"sr".into()));
    let bundle = json(&["bundle", "--json", "--admin", "127.0.0.1:1", "b.tgz"], 0);
    let entry = |name: &str| bundle["entries"].as_array().unwrap().iter().find(|entry| entry["name"] == name);
    assert_eq!(
        (&bundle["archive"], &entry("version.txt").unwrap()["left_empty"]),
        (&"b.tgz".into(), &Value::Null)
    );
    let why = entry("status.json").unwrap()["left_empty"].as_str().unwrap();
    assert!(why.starts_with("nothing answers at 127.0.0.1:1: "), "{why}");
    // Nobody runs with these files, and who is not there says so.
    for (file, code, why) in [("a.toml", 1, "admin.sock"), ("none.toml", 2, "none.toml")] {
        let failed = json(&["upgrade", "--json", file], code);
        assert_eq!((&failed["outcome"], &failed["taken"]), (&"failed".into(), &Value::Null));
        assert!(failed["text"].as_str().unwrap().contains(why), "{failed}");
    }
}

/// Packages bring them. No command has a result without.
#[test]
fn schemas_are_generated() {
    let folder = tempfile::tempdir().unwrap();
    let (code, _, err) = parts(&longhaul(folder.path(), &["generate", "."]));
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(Schemas::generate().commands(), with_results(folder.path()));
    for name in with_results(folder.path()) {
        let text = fs::read_to_string(folder.path().join(format!("schema/{name}.schema.json"))).unwrap();
        let schema: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema", "{name}");
        assert!(text.contains("\"description\""), "{name}");
    }
    assert!(folder.path().join("man/longhaul-top.1").exists());
}

/// Commands that print a result: all but a screen, and a gateway itself.
fn with_results(folder: &Path) -> BTreeSet<String> {
    let mut names = commands(folder);
    for other in ["gateway", "top"] {
        assert!(names.remove(other), "{other}");
    }
    names
}

#[test]
fn every_result_is_to_be_had_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let names = with_results(folder.path());
    assert!(names.len() >= 15, "{names:?}");
    for name in names {
        let (_, help, _) = parts(&longhaul(folder.path(), &[&name, "--help"]));
        assert!(help.contains("--json"), "{name}: {help}");
    }
}

#[test]
fn what_was_generated_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, err) = parts(&longhaul(folder.path(), &["generate", "--json", "out"]));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let written: Vec<Value> = serde_json::from_str(&out).unwrap();
    let whats: Vec<&str> = written.iter().map(|each| each["what"].as_str().unwrap()).collect();
    assert_eq!(whats, ["man", "bash", "zsh", "fish", "schema"]);
    for each in &written {
        assert!(folder.path().join(each["path"].as_str().unwrap()).exists(), "{each}");
    }
    // In words it is the same.
    let (_, words, _) = parts(&longhaul(folder.path(), &["generate", "out"]));
    let paths: Vec<&str> = written.iter().map(|each| each["path"].as_str().unwrap()).collect();
    assert_eq!(words.lines().collect::<Vec<_>>(), paths);
}

/// Programs learn of a demo that was cut short by its exit status, and what it had measured.
#[test]
fn a_demo_is_there_as_json() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.args(["demo", "--quick", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut demo = command.spawn().unwrap();
    let mut progress = BufReader::new(demo.stderr.take().unwrap()).lines();
    assert!(progress.any(|line| line.unwrap().starts_with(" 1/")), "no transfer ended");
    kill_process(Pid::from_child(&demo), Signal::INT).unwrap();
    let rest = std::thread::spawn(move || progress.map_while(Result::ok).count());
    let (code, out, _) = parts(&demo.wait_with_output().unwrap());
    rest.join().unwrap();
    let shown = Schemas::generate().hold("demo", &out);
    let first = &shown["transfers"][0];
    assert_eq!((code, &first["carried_by"]), (Some(1), &"plain RC".into()), "{shown}");
    assert!(first["right"] == true && first["goodput"].as_f64().unwrap() > 1e6, "{shown}");
    let (p50, p99) = (first["p50"].as_f64().unwrap(), first["p99"].as_f64().unwrap());
    // The link's round trip is 25 ms.
    assert!(0.025 < p50 && p50 <= p99 && p99 < 60.0, "{shown}");
}
