package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// asOperator is the variable of the environment with which this program is the operator.
const asOperator = "SHOAL_TEST_OPERATOR"

func TestMain(m *testing.M) {
	if os.Getenv(asOperator) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestArguments has words in the arguments that belong to no flag: what follows them would count
// for nothing.
func TestArguments(t *testing.T) {
	operator := exec.CommandContext(t.Context(), os.Args[0], "-elect", "false", "-schedule",
		"lab=16")
	operator.Env = append(os.Environ(), asOperator+"=1")
	out, err := operator.CombinedOutput()
	if want := `"false" is no flag: write -NAME=VALUE`; operator.ProcessState.ExitCode() != 2 ||
		!strings.Contains(string(out), want) {
		t.Errorf("%v, not %s: %s", err, want, out)
	}
}
