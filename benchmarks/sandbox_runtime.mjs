// Runs commands in the sandbox-runtime of Anthropic: `node run.mjs COUNT COMMAND …`, from a directory that has it.
import { SandboxManager } from '@anthropic-ai/sandbox-runtime'
import { spawn } from 'node:child_process'
const [count, ...commands] = process.argv.slice(2)
await SandboxManager.initialize({
  network: { allowedDomains: [], deniedDomains: [] },
  filesystem: { denyRead: [], allowWrite: ['.'], denyWrite: [] },
})
async function run(command) {
  const wrapped = await SandboxManager.wrapWithSandbox(command)
  return await new Promise((done) => {
    const child = spawn(wrapped, { shell: true, stdio: ['ignore', 'pipe', 'pipe'] })
    let output = ''
    child.stdout.on('data', (data) => { output += data })
    child.on('close', (code) => done([code, output]))
  })
}
await run('true')
const ready = performance.now()
const answers = []
for (let turn = 0; turn < Number(count); turn++) for (const command of commands) answers.push(await run(command))
console.log(JSON.stringify([(performance.now() - ready) / 1000, answers]))
await SandboxManager.reset()
process.exit(0)
