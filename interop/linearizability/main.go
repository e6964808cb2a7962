// Command linearizability checks histories that `consort chaos --history` records, key by key, with the checker porcupine.
//
// Usage: linearizability [-timeout 60s] FILE...
//
// It prints one line of JSON per history. The exit code is 0 if each key of each history is linearizable, 1 if one is not,
// 2 if a history cannot be read, and 3 if the time was over before a key was decided.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// format is the version of the history's format that this program reads.
const format = 1

// record is a line of a history: the header, a fault or an operation.
type record struct {
	Format *int   `json:"consort_history"`
	Access string `json:"access"`

	Fault        *string  `json:"fault"`
	Members      []string `json:"members"`
	ExcusesReads bool     `json:"excuses_reads"`
	From         int64    `json:"from_ns"`
	To           int64    `json:"to_ns"`

	Client      string  `json:"client"`
	Member      string  `json:"member"`
	Key         string  `json:"key"`
	Operation   string  `json:"operation"`
	Argument    *string `json:"argument"`
	Expected    *string `json:"expected"`
	Consistency string  `json:"consistency"`
	Outcome     string  `json:"outcome"`
	Found       *string `json:"found"`
	Done        *bool   `json:"done"`
	Invoked     int64   `json:"invoked_ns"`
	Completed   *int64  `json:"completed_ns"`
}

// input is what an operation asks. An empty string stands for "no value": no client writes one.
type input struct {
	operation, argument, expected string
}

// output is what its client was told.
type output struct {
	known bool
	found string
	done  bool
}

func text(value *string) string {
	if value == nil {
		return ""
	}
	return *value
}

// register is a key: its state is its value.
var register = porcupine.Model{
	Init: func() interface{} { return "" },
	Step: func(state, in, out interface{}) (bool, interface{}) {
		value, asked, told := state.(string), in.(input), out.(output)
		switch asked.operation {
		case "get":
			return told.found == value, value
		case "put":
			return true, asked.argument
		case "swap":
			return !told.known || told.found == value, asked.argument
		case "take":
			return !told.known || told.found == value, ""
		case "put_if_absent":
			return conditional(value, value == "", asked.argument, told)
		case "replace_if":
			return conditional(value, value != "" && value == asked.expected, asked.argument, told)
		}
		panic("unknown operation " + asked.operation)
	},
	DescribeOperation: func(in, out interface{}) string {
		return fmt.Sprintf("%+v -> %+v", in, out)
	},
}

func conditional(value string, holds bool, argument string, told output) (bool, interface{}) {
	if told.known && told.done != holds {
		return false, value
	}
	if holds {
		return true, argument
	}
	return true, value
}

// history is a file's operations by key, and what was left out.
type history struct {
	keys                                   map[string][]porcupine.Operation
	operations                             int
	regular, excused, unchanged, readsOpen int
}

func read(path string) (*history, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	all := &history{keys: map[string][]porcupine.Operation{}}
	var faults []record
	clients := map[string]int{}
	access := ""
	for number := 1; lines.Scan(); number++ {
		var one record
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, number, err)
		}
		switch {
		case number == 1:
			if one.Format == nil || *one.Format != format {
				return nil, fmt.Errorf("%s: not a history of format %d", path, format)
			}
			access = one.Access
		case one.Fault != nil:
			faults = append(faults, one)
		default:
			all.add(&one, access, faults, clients)
		}
	}
	return all, lines.Err()
}

func (all *history) add(one *record, access string, faults []record, clients map[string]int) {
	isKnown := one.Outcome == "ok"
	isRead := one.Operation == "get"
	switch {
	case one.Outcome == "unchanged":
		all.unchanged++
		return
	case isRead && !isKnown:
		all.readsOpen++
		return
	case one.Consistency == "regular":
		all.regular++
		return
	case changedNothing(one) && isExcused(one, access, faults):
		all.excused++
		return
	}
	client, isOld := clients[one.Client]
	if !isOld {
		client = len(clients)
		clients[one.Client] = client
	}
	// A write of which nobody knows whether it is done may be done at any time after its invocation: last of all, if never.
	end := int64(math.MaxInt64)
	if isKnown {
		end = *one.Completed
	}
	operation := porcupine.Operation{
		ClientId: client,
		Input:    input{one.Operation, text(one.Argument), text(one.Expected)},
		Call:     one.Invoked,
		Output:   output{isKnown, text(one.Found), one.Done != nil && *one.Done},
		Return:   end,
	}
	all.keys[one.Key] = append(all.keys[one.Key], operation)
	all.operations++
}

// changedNothing says whether the operation only tells what its member has: a read, a condition that did not hold, or the
// removal of a key without a value.
func changedNothing(one *record) bool {
	isRefused := one.Done != nil && !*one.Done
	isEmptyRemoval := one.Operation == "take" && one.Found == nil
	return one.Operation == "get" || one.Outcome == "ok" && (isRefused || isEmptyRemoval)
}

// isExcused says whether the operation may have been answered by a member that was left out without knowing it: the member
// in whose process the client is, or through Hot Rod any server.
func isExcused(one *record, access string, faults []record) bool {
	for _, fault := range faults {
		if !fault.ExcusesReads || *one.Completed < fault.From || one.Invoked > fault.To {
			continue
		}
		if access == "hotrod" {
			return true
		}
		for _, member := range fault.Members {
			if member == one.Member {
				return true
			}
		}
	}
	return false
}

// verdict is what is printed of a history.
type verdict struct {
	File         string   `json:"file"`
	Keys         int      `json:"keys"`
	Operations   int      `json:"operations"`
	Regular      int      `json:"regular_reads_left_out"`
	Excused      int      `json:"excused"`
	Unchanged    int      `json:"failed_without_effect"`
	Linearizable bool     `json:"linearizable"`
	Illegal      []string `json:"illegal_keys"`
	Undecided    []string `json:"undecided_keys"`
	Seconds      float64  `json:"seconds"`
}

func check(path string, all *history, timeout time.Duration) verdict {
	begin := time.Now()
	result := verdict{
		File: path, Keys: len(all.keys), Operations: all.operations, Regular: all.regular,
		Excused: all.excused, Unchanged: all.unchanged, Illegal: []string{}, Undecided: []string{},
	}
	for key, operations := range all.keys {
		switch porcupine.CheckOperationsTimeout(register, operations, timeout) {
		case porcupine.Illegal:
			result.Illegal = append(result.Illegal, key)
		case porcupine.Unknown:
			result.Undecided = append(result.Undecided, key)
		}
	}
	sort.Strings(result.Illegal)
	sort.Strings(result.Undecided)
	result.Linearizable = len(result.Illegal)+len(result.Undecided) == 0
	result.Seconds = time.Since(begin).Seconds()
	return result
}

func main() {
	timeout := flag.Duration("timeout", time.Minute, "the longest time for one key")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: linearizability [-timeout 60s] FILE...")
		os.Exit(2)
	}
	code := 0
	for _, path := range flag.Args() {
		all, err := read(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		result := check(path, all, *timeout)
		line, err := json.Marshal(result)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		fmt.Println(string(line))
		switch {
		case len(result.Illegal) > 0:
			code = 1
		case len(result.Undecided) > 0 && code == 0:
			code = 3
		}
	}
	os.Exit(code)
}
