package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// checked is the verdict on a history of these lines.
func checked(t *testing.T, lines ...string) verdict {
	t.Helper()
	path := filepath.Join(t.TempDir(), "history.jsonl")
	text := `{"consort_history":1,"access":"embedded"}` + "\n" + strings.Join(lines, "\n") + "\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := read(path)
	if err != nil {
		t.Fatal(err)
	}
	return check(path, all, time.Minute)
}

func put(client, value, outcome string, invoked, completed string) string {
	return `{"client":"` + client + `","member":"` + client[:1] + `","key":"k","operation":"put","argument":"` + value +
		`","consistency":"linearizable","outcome":"` + outcome + `","invoked_ns":` + invoked + `,"completed_ns":` + completed + `}`
}

func get(client, found, consistency string, invoked, completed string) string {
	return `{"client":"` + client + `","member":"` + client[:1] + `","key":"k","operation":"get","found":` + found +
		`,"consistency":"` + consistency + `","outcome":"ok","invoked_ns":` + invoked + `,"completed_ns":` + completed + `}`
}

func TestReadOfAReplacedValueIsIllegal(t *testing.T) {
	result := checked(t, put("A1", "1", "ok", "10", "20"), put("A1", "2", "ok", "30", "40"), get("B1", `"1"`, "linearizable", "50", "60"))
	if result.Linearizable || len(result.Illegal) != 1 {
		t.Fatal(result)
	}
}

func TestReadBesideAWriteMayGiveEitherValue(t *testing.T) {
	for _, found := range []string{`"1"`, `"2"`} {
		result := checked(t, put("A1", "1", "ok", "10", "20"), put("A1", "2", "ok", "30", "60"), get("B1", found, "linearizable", "40", "50"))
		if !result.Linearizable {
			t.Fatal(found, result)
		}
	}
}

func TestLostWriteIsIllegal(t *testing.T) {
	result := checked(t, put("A1", "1", "ok", "10", "20"), get("B1", "null", "linearizable", "30", "40"))
	if result.Linearizable {
		t.Fatal(result)
	}
}

func TestUncertainWriteIsDoneLaterOrNeverButNotTwice(t *testing.T) {
	uncertain := put("A1", "2", "uncertain", "30", "40")
	first := put("A1", "1", "ok", "10", "20")
	for _, found := range []string{`"1"`, `"2"`} {
		if result := checked(t, first, uncertain, get("B1", found, "linearizable", "50", "60")); !result.Linearizable {
			t.Fatal(found, result)
		}
	}
	both := checked(t, first, uncertain, get("B1", `"2"`, "linearizable", "50", "60"), get("B1", `"1"`, "linearizable", "70", "80"))
	if both.Linearizable {
		t.Fatal(both)
	}
}

func TestStaleReadIsExcusedOnlyAtAMemberThatIsLeftOut(t *testing.T) {
	fault := `{"fault":"cut","members":["B"],"excuses_reads":true,"from_ns":25,"to_ns":100}`
	lines := []string{fault, put("A1", "1", "ok", "10", "20"), put("A1", "2", "ok", "30", "40")}
	if result := checked(t, append(lines, get("B1", `"1"`, "linearizable", "50", "60"))...); !result.Linearizable || result.Excused != 1 {
		t.Fatal(result)
	}
	if result := checked(t, append(lines, get("C1", `"1"`, "linearizable", "50", "60"))...); result.Linearizable {
		t.Fatal(result)
	}
	if result := checked(t, append(lines, get("B1", `"1"`, "linearizable", "110", "120"))...); result.Linearizable {
		t.Fatal(result)
	}
}

func TestRemovalIsExcusedOnlyIfItRemovedNothingAtAMemberThatIsLeftOut(t *testing.T) {
	fault := `{"fault":"pause","members":["B"],"excuses_reads":true,"from_ns":25,"to_ns":100}`
	take := func(member, found string) string {
		return `{"client":"` + member + `1","member":"` + member + `","key":"k","operation":"take","found":` + found +
			`,"consistency":"linearizable","outcome":"ok","invoked_ns":50,"completed_ns":60}`
	}
	lines := []string{fault, put("A1", "1", "ok", "10", "20"), put("A1", "2", "ok", "30", "40")}
	if result := checked(t, append(lines, take("B", "null"))...); !result.Linearizable || result.Excused != 1 {
		t.Fatal(result)
	}
	for _, planted := range []string{take("C", "null"), take("B", `"1"`)} {
		if result := checked(t, append(lines, planted)...); result.Linearizable {
			t.Fatal(planted, result)
		}
	}
}

func TestSwapMustReturnTheValueBefore(t *testing.T) {
	swap := func(found string) string {
		return `{"client":"B1","member":"B","key":"k","operation":"swap","argument":"3","found":` + found +
			`,"consistency":"linearizable","outcome":"ok","invoked_ns":50,"completed_ns":60}`
	}
	if result := checked(t, put("A1", "1", "ok", "10", "20"), swap(`"1"`)); !result.Linearizable {
		t.Fatal(result)
	}
	if result := checked(t, put("A1", "1", "ok", "10", "20"), swap("null")); result.Linearizable {
		t.Fatal(result)
	}
}

func TestAnotherFormatIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.jsonl")
	if err := os.WriteFile(path, []byte(`{"consort_history":2}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := read(path); err == nil {
		t.Fatal("format 2 was read")
	}
}
