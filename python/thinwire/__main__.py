"""What there is to start from the command line: ``python3 -m thinwire``."""
import sys

COMMANDS = [
    ("thinwire.doctor", "what this installation can do, and what is wrong with it"),
    ("thinwire.launch -n RANKS SCRIPT", "starts a script with several ranks on this machine"),
    ("thinwire.plan SCRIPT", "what a training script would gain, measured in a few of its steps"),
]

if __name__ == "__main__":
    print("Gradient synchronization over thin wires, for DistributedDataParallel. In a script:\n\n"
          "    handle = thinwire.register(model, 'auto')\n\nFrom the command line:\n")
    for command, purpose in COMMANDS:
        print(f"    python3 -m {command:<33}{purpose}")
    print("\nthinwire.systems() lists the systems that may stand in place of 'auto', and stages in front"
          " of them, with their options.")
    if len(sys.argv) > 1 and sys.argv[1] not in ("-h", "--help"):
        sys.exit(f"'{sys.argv[1]}' is none of these commands: write python3 -m thinwire.NAME")
