package state

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/plural"
)

// shoal state seal and shoal state verify. One goroutine runs what is here, that of the command, so
// nothing is locked. Both wait for the goroutines of package checkpoint.

// newStateSealCommand returns the command shoal state seal.
func newStateSealCommand() *cobra.Command {
	var workers int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "seal PATH",
		Short: "Write down what a checkpoint holds, to compare with later",
		Long: cli.Help(`Write the manifest of a checkpoint: a fingerprint of each tensor and hashes of the blocks of each
file. A fingerprint is the same in every layout and format.

The manifest is shoal-manifest.json in the folder, or has that name after the name of a single
file. Every command that moves a sealed checkpoint compares it with its manifest.`, cli.ExitCodes, "files"),
		Example: `  shoal state seal checkpoints/step-1000
  shoal state seal model.safetensors
  shoal state seal s3://models/llama
  shoal state seal --json checkpoints/step-1000 | jq -r .fingerprint`,
		Args: cli.Arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := checkpoint.Open(args[0])
			if err != nil {
				return err
			}
			defer c.Close()
			cli.FinishOnSignal(cmd.Context())
			ctx, clear := withProgress(cmd)
			m, err := checkpoint.Seal(ctx, c, workers)
			clear()
			if durable.Full(err) {
				err = fmt.Errorf("%w; nothing is sealed: make room, and seal it again", err)
			}
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(
					sealedJSON{args[0], len(m.Tensors), len(m.Files),
						m.Shown.String()})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is sealed: %s in %s, fingerprint %v\n",
				args[0], plural.Of(len(m.Tensors), "tensor"),
				plural.Of(len(m.Files), "file"), m.Shown)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false,
		"print the number of tensors and files, and the fingerprint of all, as one JSON object")
	addWorkersFlag(cmd, &workers)
	return cmd
}

// sealedJSON is a seal in the output for programs.
type sealedJSON struct {
	Path        string `json:"path"`
	Tensors     int    `json:"tensors"`
	Files       int    `json:"files"`
	Fingerprint string `json:"fingerprint"`
}

// newStateVerifyCommand returns the command shoal state verify.
func newStateVerifyCommand() *cobra.Command {
	var workers int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify PATH",
		Short: "Compare a checkpoint with its seal",
		Long: cli.Help(`Compare every byte of a checkpoint with its manifest.
The command prints what is not as it was sealed: the file, the place in it, and the tensors.`, "Exit codes: 0 all is as it was sealed, 1 it is not, 2 wrong usage.", "files"),
		Example: `  shoal state verify checkpoints/step-1000
  shoal state verify s3://models/llama
  shoal state verify --json model.safetensors | jq -r .file`,
		Args: cli.Arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, clear := withProgress(cmd)
			damage, m, err := checkpoint.Verify(ctx, args[0], workers)
			clear()
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if err := printAll(out, damage, asJSON); err != nil {
				return err
			}
			if len(damage) > 0 {
				return fmt.Errorf(
					"%s is not as it was sealed; restore what is named above from another copy",
					args[0])
			}
			if !asJSON {
				_, err = fmt.Fprintf(out, "%s is as it was sealed: %s in %s, fingerprint %v\n",
					args[0], plural.Of(len(m.Tensors), "tensor"),
					plural.Of(len(m.Files), "file"), m.Shown)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object for each damage")
	addWorkersFlag(cmd, &workers)
	return cmd
}
