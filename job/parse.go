package job

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	plain "go.yaml.in/yaml/v2"
	"sigs.k8s.io/yaml"

	"github.com/shoal-ml/shoal/internal/spelling"
	"github.com/shoal-ml/shoal/internal/strict"
)

// How a spec is read from YAML. Load alone does I/O.

// maxFile bounds a spec file; a real one is a few hundred bytes.
const maxFile = 1 << 20

// keys are the keys of a spec, with an example of each for error messages.
var keys = []struct{ name, example string }{
	{"name", "name: digits"},
	{"workers", "workers: 4"},
	{"command", "command: [python3, train.py]"},
	{"env", `env: {LOG_LEVEL: "info"}`},
	{"min", "min: 2"},
	{"max", "max: 8"},
	{"spares", "spares: 1"},
	{"grow", "grow: true"},
	{"prefork", "prefork: [torch]"},
	{"fixed_routes", "fixed_routes: true"},
	{"redundant", "redundant: true"},
	{"auto", "auto: act"},
	{"policies", "policies: [./mine.py]"},
	{"budget", "budget: 0.5"},
	{"price", "price: 2.5"},
	{"schedule", "schedule: {priority: 10}"},
}

// Load reads a spec file from the disk, without defaults. Its errors name the file.
func Load(path string) (Spec, error) {
	f, err := os.Open(path)
	if err != nil {
		return Spec{}, fileError(path, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return Spec{}, fileError(path, err)
	}
	if len(text) > maxFile {
		return Spec{}, &Error{"",
			fmt.Sprintf(
				"%s is larger than %d bytes, so it is hardly a job spec; see shoal run --help",
				path, maxFile)}
	}
	spec, err := Parse(text)
	if err != nil {
		return Spec{}, fmt.Errorf("%s: %w", path, err)
	}
	return spec, nil
}

// fileError returns the Error of a spec file that cannot be read.
func fileError(path string, err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return &Error{"", fmt.Sprintf(
		"cannot read the job spec %s: %v; check the path after -f and its permissions", path, err)}
}

// Parse reads a spec. Unknown and repeated keys are errors; nothing is defaulted or validated.
func Parse(text []byte) (Spec, error) {
	var spec Spec
	var top map[string]any
	if err := yaml.Unmarshal(text, &top); err != nil {
		reason := strict.PlainReason(err)
		if number, is := strings.CutPrefix(reason, "unsupported value: "); is {
			return spec, &Error{"", number + " is no number that a key takes: write a finite one"}
		}
		return spec, &Error{"",
			fmt.Sprintf("not YAML with keys at the top: %s; it looks like this:\n%s", reason,
				exampleSpec())}
	}
	if err := checkKeys(top); err != nil {
		return spec, err
	}
	if schedule, said := top["schedule"]; said {
		if err := checkScheduleKeys(schedule); err != nil {
			return spec, err
		}
	}
	if words, _ := top["command"].([]any); slices.Contains(words, nil) {
		return spec, &Error{"command", fmt.Sprintf("word %d is null, as ~ and nothing are in "+
			`YAML; write "" for an empty word, and "~" for that sign`, slices.Index(words, nil))}
	}
	if err := yaml.UnmarshalStrict(text, &spec); err != nil {
		return Spec{}, typeError(err)
	}
	if _, said := top["workers"]; said && spec.Workers == 0 {
		return Spec{}, workersError(0) // not the default, which is for saying nothing
	}
	if err := spec.setTexts(text); err != nil {
		return Spec{}, err
	}
	return spec, nil
}

// checkKeys returns an Error for a key that no spec has, of what is in a file; nil otherwise.
func checkKeys(fields map[string]any) error {
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		switch {
		case slices.Contains(keyNames(), key):
		case slices.Contains(scheduleKeyNames(), key):
			return &Error{key, "it is a key of schedule; write it like this: " +
				exampleOf("schedule."+key)}
		default:
			return &Error{key,
				fmt.Sprintf("no such key%s; known are %s", spelling.Meant(key, keyNames()),
					strings.Join(keyNames(), ", "))}
		}
	}
	return nil
}

// setTexts sets the texts of s as they are written. On the way through JSON 1.10 has become 1.1,
// 0123 83, and yes true. It also returns an error if something comes after the spec, which that way
// leaves out.
func (s *Spec) setTexts(text []byte) error {
	var written struct {
		Name    string
		Command []string
		Env     map[string]string
	}
	documents := plain.NewDecoder(bytes.NewReader(text))
	if err := documents.Decode(&written); err != nil && !errors.Is(err, io.EOF) {
		return &Error{"", strict.PlainReason(err)}
	}
	s.Name, s.Command, s.Env = written.Name, written.Command, written.Env
	var more any
	if err := documents.Decode(&more); more != nil || err != nil && !errors.Is(err, io.EOF) {
		return &Error{"", "there is more than one document, but a file is one job: take out " +
			"what comes after the line ---"}
	}
	return nil
}

// typeError returns a decoding error as one that names the key and shows how it is written.
func typeError(err error) error {
	var te *json.UnmarshalTypeError
	if !errors.As(err, &te) {
		return &Error{"", strict.PlainReason(err)}
	}
	key, _, _ := strings.Cut(te.Field, ".")
	if key == "schedule" {
		return &Error{key, whyNotHere(te.Value, exampleOf(te.Field))}
	}
	for _, k := range keys {
		if k.name == key {
			return &Error{key, whyNotHere(te.Value, k.example)}
		}
	}
	return &Error{key, strict.PlainReason(err)}
}

// whyNotHere says that a kind of value, such as "array", does not belong to a key, and how that is
// written.
func whyNotHere(kind, example string) string {
	article := "a"
	if strings.ContainsRune("ao", rune(kind[0])) {
		article = "an"
	}
	return fmt.Sprintf("%s %s does not belong here; write it like this: %s", article, kind, example)
}

// keyNames lists the keys that a spec may have.
func keyNames() []string {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.name
	}
	return names
}

// exampleSpec returns a spec with an example of each key, for error messages.
func exampleSpec() string {
	var b strings.Builder
	for _, k := range keys {
		b.WriteString("  " + k.example + "\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}
