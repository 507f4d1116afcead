package run

import (
	"fmt"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/internal/cli"
)

// shoal policy. One goroutine runs what is here, that of the command, so nothing is locked. policy
// test runs the program of a policy, and waits for it.

// NewPolicyCommand returns the command shoal policy.
func NewPolicyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Try a policy of your own",
		Long: cli.Help(`Try a policy of your own before it decides about a job.
A policy is a function in Python, or any program, that changes how a job trains; what it is told
and may answer is in docs/formats/policy.md.`,
			cli.ExitCodes, "train"),
		Example: `  shoal policy test mine.py cases.txt
  shoal run -n 4 --auto=watch --policy ./mine.py -- python3 train.py
  shoal run -n 4 --auto --policy ./mine.py -- python3 train.py`,
		Args: cobra.ArbitraryArgs,
		RunE: cli.RunGroup,
	}
	cmd.AddCommand(newPolicyTestCommand())
	return cmd
}

// newPolicyTestCommand returns the command shoal policy test.
func newPolicyTestCommand() *cobra.Command {
	python := "python3"
	cmd := &cobra.Command{
		Use:   "test FILE CASES",
		Short: "Ask a policy in Python what it wants after each observation of a file",
		Long: cli.Help(`Ask a policy in Python what it wants after each observation of a file, one a line.
The command fails where the policy does. What it has returned as its state is given to it again with
the next observation. Lines that begin with # are left out.`, cli.ExitCodes, "train"),
		Example: `  shoal policy test mine.py cases.txt
  shoal policy test examples/auto/policy.py examples/auto/observations.txt
  shoal policy test mine.py cases.txt --python .venv/bin/python`,
		Args: cli.Arguments(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.RefuseEmpty(cmd.Flags(), "python"); err != nil {
				return err
			}
			for _, path := range args {
				info, err := os.Stat(path)
				if err == nil && info.IsDir() {
					err = fmt.Errorf("%s is a folder", path)
				}
				if err != nil {
					return cli.Usagef("%v; give the file of the policy, and that of the cases", err)
				}
			}
			env := cli.PythonEnv()
			if err := cli.CheckPython(cmd.Context(), python, env, "shoal"); err != nil {
				return err
			}
			c := exec.CommandContext(cmd.Context(), python, "-m", "shoal._policy_program", "test",
				args[0], args[1])
			c.Env = os.Environ()
			for name, value := range env {
				c.Env = append(c.Env, name+"="+value)
			}
			c.Stdout, c.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
			if err := c.Run(); err != nil {
				return fmt.Errorf("the policy %s has failed: %w", args[0], err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&python, "python", python, "run the policy with this `INTERPRETER`")
	return cmd
}
