package state

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/plural"
)

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
			m, err := checkpoint.Seal(cmd.Context(), c, workers)
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
			damage, m, err := checkpoint.Verify(cmd.Context(), args[0], workers)
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

// newStateDiffCommand returns the command shoal state diff.
func newStateDiffCommand() *cobra.Command {
	var workers int
	var asJSON bool
	flags := sourceFlags{model: modelFlags{either: true}}
	cmd := &cobra.Command{
		Use:   "diff A B",
		Short: "Compare the tensors of two checkpoints, whatever their layouts and formats",
		Long: cli.Help(`Compare the tensors of two checkpoints bit by bit, whatever their layouts and formats.
The command says which tensors are in one of them only, or differ in type, shape or content.

  flag         under which names tensors are compared
  --names hf   Megatron's tensors under the names of Hugging Face, as convert writes them
  --rename     tensors of A under the names that convert would give them
  --strip      tensors of A without this beginning of their names
  --only       tensors whose names in A match, and in B, or would in A

Where one is the checkpoint of a training, and the other a model, the models are compared. What one
has under two names that are tied, such as lm_head.weight, and the other under one, is the same.

Only tensors are compared. Damage that a checksum shows is reported, and not compared further.`, "Exit codes: 0 the tensors are the same, 1 they differ or an error, 2 wrong usage.", "files"),
		Example: `  shoal state diff checkpoints/step-1000 model.safetensors --only 'model.**'
  shoal state diff megatron model --names hf --config model/config.json --only 'model.**'
  shoal state diff zero model.safetensors --rename module.= --only 'module.**'
  shoal state diff --json before after | jq -r .tensor`,
		Args: cli.Arguments(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := flags.model.refuseUnused(cmd.Flags(), false); err != nil {
				return err
			}
			a, err := flags.open(args[0])
			if err != nil {
				return err
			}
			defer a.Close()
			flags.renamed = true
			b, err := flags.open(args[1])
			if err != nil {
				return err
			}
			defer b.Close()
			if err := flags.unwrap(cmd.ErrOrStderr(), a, b); err != nil {
				return err
			}
			found, tied, err := checkpoint.Compare(cmd.Context(), a, b, workers)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if err := printAll(out, found, asJSON); err != nil {
				return err
			}
			for i := 0; i < len(tied) && !asJSON; i++ {
				t := &tied[i]
				fmt.Fprintf(cmd.ErrOrStderr(), "shoal: %s is only in %s, where it is the same "+
					"tensor as %s, which both have\n", quotedName(t.Tensor), t.In, quotedName(t.To))
			}
			if len(found) > 0 {
				return fmt.Errorf("%s and %s differ in %s", args[0], args[1],
					plural.Of(len(found), "tensor"))
			}
			if !asJSON {
				n := len(a.Tensors)
				for _, t := range tied {
					if t.In == "A" {
						n--
					}
				}
				_, err = fmt.Fprintf(out, "%s and %s have the same %s, bit by bit\n", args[0],
					args[1], plural.Of(n, "tensor"))
			}
			return err
		},
	}
	flags.addTensorsTo(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false,
		"print one JSON object for each tensor that differs")
	addWorkersFlag(cmd, &workers)
	return cmd
}

// unwrap leaves the model alone of one of two checkpoints that has it beside others, where the other
// one has a model only, and no flag says what to compare. It says so in notes. It fails where
// --names finds nothing to do.
func (s *sourceFlags) unwrap(notes io.Writer, a, b *checkpoint.Checkpoint) error {
	if s.model.names != "" && !s.model.named {
		return cli.Usagef("neither of both has the names of Megatron, for which --names hf is; " +
			"leave it out")
	}
	if !s.takesAll() {
		return nil
	}
	if w, found := b.Wrapper(); found && !a.HasBeginning(w.Prefix) {
		a = b
	} else if w, found := a.Wrapper(); !found || b.HasBeginning(w.Prefix) {
		return nil
	}
	said, err := a.ModelAlone()
	for _, note := range said {
		fmt.Fprintf(notes, "shoal: %s\n", note)
	}
	return err
}
